// mesh: a socket from each rank of a communicator to each (itself included), and messages over them that never block.
#ifndef DEV_CUDASIM_MESH_H
#define DEV_CUDASIM_MESH_H

#include <cstddef>
#include <string>
#include <vector>

namespace cudasim {

class Mesh {
   public:
    // Ranks find each other by `id`. Runs other work while it waits for them; false: they did not come in time.
    bool open(const std::string &id, int rank, int n_ranks);
    void close();
    int to(int rank) const {
        return to_[static_cast<size_t>(rank)];
    }
    int from(int rank) const {
        return from_[static_cast<size_t>(rank)];
    }

   private:
    std::vector<int> to_, from_;  // the same socket, except to the rank itself
};

enum class Progress { NOTHING, SOME, LOST };  // LOST: the peer is gone

// Bytes on their way to or from one rank. Messages over one socket follow one another.
struct Message {
    int peer;
    std::vector<char> data;
    size_t moved = 0;

    bool finished() const {
        return moved == data.size();
    }
    Progress send(const Mesh &mesh);
    Progress receive(const Mesh &mesh);
};

}  // namespace cudasim

#endif
