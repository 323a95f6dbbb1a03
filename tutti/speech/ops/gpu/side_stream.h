// A second queue of work for a GPU, so that one thread's kernels run beside another's. On a CPU it does
// nothing.
//
//   SideStream side(device);
//   {
//     const SideStream::Scope beside(side);       // this thread queues there meanwhile
//     encoded = model->encode(speech);
//     done = side.mark();
//   }
//   done.wait();                                  // the host waits for what was queued until then
//   side.give_to_current(encoded);                // by who reads it, on another stream
//
// What a scope reads must be there before: the streams do not wait for each other. One scope at a time;
// a second thread's waits.
#pragma once

#include <torch/types.h>

#include <memory>

namespace tutti::speech {

class SideStream {
 public:
  explicit SideStream(const torch::Device& device);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  class Scope {
   public:
    explicit Scope(SideStream& stream);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    struct Held;
    std::unique_ptr<Held> held_;
  };

  // The end of what was queued before it was made.
  class Mark {
   public:
    void wait() const;  // the host does; from any thread

   private:
    friend class SideStream;
    struct Event;
    std::shared_ptr<Event> event_;  // null: there is nothing to wait for
  };
  Mark mark() const;

  // Its memory, which is the side stream's, is not used again before the current stream has read it.
  void give_to_current(const torch::Tensor& tensor) const;

 private:
  struct Queue;
  std::unique_ptr<Queue> queue_;  // null on a CPU
};

}  // namespace tutti::speech
