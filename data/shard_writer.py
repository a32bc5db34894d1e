"""Writes token shards: OUT/train_00000.h5, OUT/train_00001.h5 … and OUT/val_00000.h5 … in the format of data/shards.h.

Each is written under a hidden temporary name, synced, and all get their final names at the end: a run that is killed
leaves no shard behind that looks complete.
"""
import glob
import os

import h5py
import numpy as np

from text_tokenizers import PrepareError

SIDES = ("train", "val")
COPY_TOKENS = 1 << 22  # tokens moved at a time


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class ShardWriter:
    """The shards of one run. attributes and settings go on the root and on /vocab; tables are /vocab's datasets."""

    def __init__(self, out, shard_tokens, dtype, attributes, tables, settings, force):
        self.out, self.shard_tokens, self.dtype = out, shard_tokens, np.dtype(dtype)
        self.attributes, self.tables, self.settings = attributes, tables, settings
        self.old = [p for side in SIDES for p in glob.glob(os.path.join(glob.escape(out), side + "_[0-9]*.h5"))]
        if self.old and not force:
            raise PrepareError("%s holds shards already (%s); choose another --out, or replace them with --force"
                               % (out, ", ".join(sorted(map(os.path.basename, self.old))[:3])))
        os.makedirs(out, exist_ok=True)
        self.open = {}      # side -> [file, dataset, tokens written]
        self.finished = {side: [] for side in SIDES}
        self.n_tokens = dict.fromkeys(SIDES, 0)
        self.files = {}     # other files of the run: name -> bytes

    def _temporary(self, name):
        return os.path.join(self.out, "." + name + ".tmp")

    def _create(self, name, n):
        """A file with everything but the tokens, for which a place of n tokens is reserved at once: contiguous, unfilled."""
        file = h5py.File(self._temporary(name), "w")
        for key, value in self.attributes.items():
            file.attrs[key] = value
        if self.tables:
            group = file.create_group("vocab")
            for key, value in self.tables.items():
                group.create_dataset(key, data=value)
            for key, value in self.settings.items():
                group.attrs[key] = value
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        kind = h5py.h5t.STD_U16LE if self.dtype.itemsize == 2 else h5py.h5t.STD_U32LE
        h5py.h5d.create(file.id, b"tokens", kind, h5py.h5s.create_simple((n,)), layout)
        return file, file["tokens"]

    def write(self, side, tokens):
        while len(tokens):
            if side not in self.open:
                self.open[side] = [*self._create(self._name(side), self.shard_tokens), 0]
            state = self.open[side]
            dataset, at = state[1], state[2]
            n = min(len(tokens), self.shard_tokens - at)
            dataset[at:at + n] = tokens[:n]
            state[2] += n
            self.n_tokens[side] += n
            tokens = tokens[n:]
            if state[2] == self.shard_tokens:
                self._finish(side)

    def _name(self, side):
        return "%s_%05d.h5" % (side, len(self.finished[side]))

    def _finish(self, side):
        file, dataset, n = self.open.pop(side)
        name = self._name(side)
        if n < self.shard_tokens:  # the last one: a contiguous dataset cannot shrink, so it is copied to one that fits
            short, tokens = self._create("short_" + name, n)
            for at in range(0, n, COPY_TOKENS):
                tokens[at:min(at + COPY_TOKENS, n)] = dataset[at:min(at + COPY_TOKENS, n)]
            short.close()
            file.close()
            os.replace(self._temporary("short_" + name), self._temporary(name))
        else:
            file.close()
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
        for file, _, _ in self.open.values():
            try:
                file.close()
            except (OSError, RuntimeError):
                pass  # a full disk: the file goes anyway
        for side in SIDES:
            for name in [*self.finished[side], self._name(side)]:
                for temporary in (self._temporary(name), self._temporary("short_" + name)):
                    if os.path.exists(temporary):
                        os.unlink(temporary)
