#include "tutti/parallel/run/mailbox.h"

namespace tutti::parallel {

void Mailbox::post(std::function<void()> letter) {
  {
    const std::lock_guard lock(mutex_);
    letters_.push_back(std::move(letter));
  }
  wake();
}

void Mailbox::open() {
  event_.clear();
  for (;;) {
    std::function<void()> letter;
    {
      const std::lock_guard lock(mutex_);
      if (letters_.empty()) return;
      letter = std::move(letters_.front());
      letters_.pop_front();
    }
    letter();
  }
}

SideThread::SideThread() : thread_([this] { run(); }) {}

SideThread::~SideThread() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void SideThread::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void SideThread::drop_queued() {
  const std::lock_guard lock(mutex_);
  tasks_.clear();
}

double SideThread::busy_s() const {
  const std::lock_guard lock(mutex_);
  if (!busy_since_) return 0;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - *busy_since_).count();
}

void SideThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const auto task = std::move(tasks_.front());
    tasks_.pop_front();
    busy_since_ = std::chrono::steady_clock::now();
    lock.unlock();
    task();
    lock.lock();
    busy_since_.reset();
  }
}

}  // namespace tutti::parallel
