#include "dev/cudasim/mesh.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "dev/cudasim/report.h"
#include "dev/cudasim/settings.h"
#include "dev/cudasim/stream.h"

namespace cudasim {
namespace {

// A name in Linux's abstract socket space: gone with the process that bound it.
struct Address {
    sockaddr_un name = {};
    socklen_t bytes;

    Address(const std::string &id, int rank) {
        std::string path = "cudasim-" + id + "-" + std::to_string(rank);
        name.sun_family = AF_UNIX;
        if (path.size() + 1 > sizeof name.sun_path)
            fatal("nccl: the communicator's name is too long: %s", path.c_str());
        memcpy(name.sun_path + 1, path.data(), path.size());
        bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
    }
    const sockaddr *get() const {
        return reinterpret_cast<const sockaddr *>(&name);
    }
};

int new_socket() {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        fatal("nccl: cannot make a socket: %s", strerror(errno));
    return fd;
}
void make_nonblocking(int fd) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

// Call `attempt` until it is true; other work goes on meanwhile.
template <class Attempt>
bool within_time(Attempt attempt) {
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(settings().timeout_seconds);
    while (!attempt()) {
        if (std::chrono::steady_clock::now() > end)
            return false;
        work_meanwhile();
    }
    return true;
}

}  // namespace

bool Mesh::open(const std::string &id, int rank, int n_ranks) {
    to_.assign(static_cast<size_t>(n_ranks), -1);
    int listener = new_socket();
    Address own(id, rank);
    if (bind(listener, own.get(), own.bytes) != 0 || listen(listener, n_ranks) != 0)
        fatal("nccl: rank %d of this communicator exists already", rank);
    make_nonblocking(listener);
    bool complete = true;
    for (int peer = 0; peer < rank && complete; peer++) {  // call the ranks below,
        Address address(id, peer);
        int fd = new_socket();
        complete = within_time([&] { return connect(fd, address.get(), address.bytes) == 0; });
        complete = complete && ::send(fd, &rank, sizeof rank, MSG_NOSIGNAL) == sizeof rank;
        to_[static_cast<size_t>(peer)] = fd;
    }
    for (int i = rank + 1; i < n_ranks && complete; i++) {  // be called by those above
        int fd = -1, peer = -1;
        complete = within_time([&] { return (fd = accept(listener, nullptr, nullptr)) >= 0; });
        if (complete && (recv(fd, &peer, sizeof peer, MSG_WAITALL) != sizeof peer || peer <= rank || peer >= n_ranks))
            fatal("nccl: a stranger called");
        if (complete)
            to_[static_cast<size_t>(peer)] = fd;
    }
    ::close(listener);
    from_ = to_;
    int self[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, self) != 0)
        fatal("nccl: cannot make a socket: %s", strerror(errno));
    to_[static_cast<size_t>(rank)] = self[0];
    from_[static_cast<size_t>(rank)] = self[1];
    for (const std::vector<int> *ends : {&to_, &from_})
        for (int fd : *ends)
            if (fd >= 0)
                make_nonblocking(fd);
    return complete;
}

void Mesh::close() {
    for (size_t i = 0; i < to_.size(); i++) {
        ::close(to_[i]);
        if (from_[i] != to_[i])
            ::close(from_[i]);
    }
    to_.clear();
    from_.clear();
}

static Progress moved_some(Message &message, ssize_t n) {
    if (n > 0)
        message.moved += static_cast<size_t>(n);
    if (n > 0)
        return Progress::SOME;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? Progress::NOTHING : Progress::LOST;
}

Progress Message::send(const Mesh &mesh) {
    return moved_some(*this, ::send(mesh.to(peer), data.data() + moved, data.size() - moved, MSG_NOSIGNAL));
}
Progress Message::receive(const Mesh &mesh) {
    return moved_some(*this, ::recv(mesh.from(peer), data.data() + moved, data.size() - moved, 0));
}

}  // namespace cudasim
