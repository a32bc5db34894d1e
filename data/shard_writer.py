"""Writes token shards: OUT/train_00000.h5, OUT/train_00001.h5 … and OUT/val_00000.h5 … in the format of data/shards.h.

Each is written under a hidden temporary name, synced, and all get their final names at the end: a run that is killed
leaves no shard behind that looks complete.
"""
import fcntl
import glob
import os

import h5py
import numpy as np

from text_tokenizers import PrepareError

SIDES = ("train", "val")
HEADER_BYTES = 64 << 10  # more than HDF5's own structures take in a shard
COPY_BYTES = 8 << 20  # moved at a time


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def take_directory(out):
    """Keep other runs out until this one ends, and remove what one that was killed has left."""
    try:
        fcntl.flock(os.open(out, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until the process ends
    except BlockingIOError:
        raise PrepareError("another prepare.py is writing to %s; wait for it, or choose another --out" % out) from None
    except OSError:
        return  # a file system without locks
    for side in SIDES:
        for pattern in (".%s_[0-9]*.h5.tmp", ".short_%s_[0-9]*.h5.tmp"):
            for path in glob.glob(os.path.join(glob.escape(out), pattern % side)):
                os.unlink(path)


def find_old_shards(out, force):
    """Make the directory; the shards that are in it, which only --force may replace."""
    try:
        os.makedirs(out, exist_ok=True)
    except OSError as error:
        raise PrepareError("cannot make the directory %s: %s" % (out, error.strerror)) from None
    if not os.access(out, os.W_OK):
        raise PrepareError("cannot write to the directory %s: permission denied" % out)
    take_directory(out)
    old = sorted(p for side in SIDES for p in glob.glob(os.path.join(glob.escape(out), side + "_[0-9]*.h5")))
    if old and not force:
        raise PrepareError("%s holds shards already (%s%s); choose another --out, or replace them with --force"
                           % (out, os.path.basename(old[0]), " …" if len(old) > 1 else ""))
    return old


class ShardWriter:
    """The shards of one run; `old` ones are removed when they are committed. attributes and settings go on the root and on /vocab; tables are /vocab's datasets."""

    def __init__(self, out, old, shard_tokens, dtype, attributes, tables, settings):
        self.out, self.old, self.shard_tokens, self.dtype = out, old, shard_tokens, np.dtype(dtype)
        self.attributes, self.tables, self.settings = attributes, tables, settings
        self.open = {}      # side -> [file, tokens written]
        self.finished = {side: [] for side in SIDES}
        self.n_tokens = dict.fromkeys(SIDES, 0)
        self.files = {}     # other files of the run: name -> bytes

    def _temporary(self, name):
        return os.path.join(self.out, "." + name + ".tmp")

    def _create(self, name, n):
        """A file with everything but the tokens, for which a contiguous place of n is reserved, unfilled (a hole in the
        file). Returns it as a plain file at the place of the first token: the library is not in the way of the data, and
        a full disk is an ordinary error."""
        path = self._temporary(name)
        # HDF5 1.10 crashes when it cannot write its header, so the space is asked for with plain calls first.
        header_bytes = sum(table.nbytes for table in self.tables.values()) + HEADER_BYTES
        with open(path, "wb") as probe:
            probe.write(bytes(header_bytes))
            probe.truncate(header_bytes + n * self.dtype.itemsize)
        with h5py.File(path, "w") as file:
            for key, value in self.attributes.items():
                file.attrs[key] = value
            if self.tables:
                group = file.create_group("vocab")
                for key, value in self.tables.items():
                    group.create_dataset(key, data=value, track_times=False)
                for key, value in self.settings.items():
                    group.attrs[key] = value
            layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            layout.set_obj_track_times(False)  # equal input gives equal files, whenever they are made
            layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            kind = h5py.h5t.STD_U16LE if self.dtype.itemsize == 2 else h5py.h5t.STD_U32LE
            offset = h5py.h5d.create(file.id, b"tokens", kind, h5py.h5s.create_simple((n,)), layout).get_offset()
        plain = open(path, "r+b")
        plain.seek(offset)
        return plain

    def write(self, side, tokens):
        while len(tokens):
            if side not in self.open:
                self.open[side] = [self._create(self._name(side), self.shard_tokens), 0]
            file, at = self.open[side]
            n = min(len(tokens), self.shard_tokens - at)
            file.write(tokens[:n].astype(self.dtype, copy=False).tobytes())
            self.open[side][1] += n
            self.n_tokens[side] += n
            tokens = tokens[n:]
            if at + n == self.shard_tokens:
                self._finish(side)

    def _name(self, side):
        return "%s_%05d.h5" % (side, len(self.finished[side]))

    def _finish(self, side):
        name = self._name(side)
        file, n = self.open[side]
        if n < self.shard_tokens:  # the last one: a contiguous dataset cannot shrink, so it is copied to one that fits
            n_bytes = n * self.dtype.itemsize
            file.seek(-n_bytes, os.SEEK_CUR)
            with self._create("short_" + name, n) as short:
                for at in range(0, n_bytes, COPY_BYTES):
                    short.write(file.read(min(COPY_BYTES, n_bytes - at)))
            os.replace(self._temporary("short_" + name), self._temporary(name))
        file.close()
        del self.open[side]
        sync(self._temporary(name))
        self.finished[side].append(name)

    def commit(self):
        """Give everything its final name. Returns the shards' paths by side."""
        for side in list(self.open):
            self._finish(side)
        for name, data in self.files.items():
            with open(self._temporary(name), "wb") as file:
                file.write(data)
            sync(self._temporary(name))
        new = [*self.files, *self.finished["train"], *self.finished["val"]]
        for name in new:
            os.replace(self._temporary(name), os.path.join(self.out, name))
        for path in self.old:  # shards of an earlier, longer run would be read together with these
            if os.path.basename(path) not in new:
                os.unlink(path)
        sync(self.out)
        return {side: [os.path.join(self.out, name) for name in self.finished[side]] for side in SIDES}

    def discard(self):
        """Remove what was not committed."""
        for file, _ in self.open.values():
            try:
                file.close()
            except OSError:
                pass  # a full disk: the file goes anyway
        for side in SIDES:
            for name in [*self.finished[side], self._name(side)]:
                for temporary in (self._temporary(name), self._temporary("short_" + name)):
                    if os.path.exists(temporary):
                        os.unlink(temporary)
