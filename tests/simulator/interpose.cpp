// C library calls. The simulated world answers them for its threads, and the C library for all others. The linker
// prefers these definitions, also for libstdc++, because they are in the program itself.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <vector>

#include "tests/simulator/network.h"
#include "tests/simulator/world.h"

namespace torch_remote::simulator {
namespace {

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

constexpr Nanoseconds kRealtime = 1'700'000'000 * kSecond;  // real time when the world's clock is 0

Nanoseconds nanoseconds(const timespec& time) {
  return static_cast<Nanoseconds>(time.tv_sec) * kSecond + static_cast<Nanoseconds>(time.tv_nsec);
}

// Converts a time to the world's clock.
Nanoseconds deadline(clockid_t clock, const timespec& time) {
  const Nanoseconds then = nanoseconds(time);
  return clock == CLOCK_REALTIME ? then - std::min(then, kRealtime) : then;
}

}  // namespace

int poll_until(pollfd* polled, nfds_t count, Nanoseconds until) {
  World& world = *simulator::world();
  world.pass(200);
  world.maybe_switch();
  for (;;) {
    int ready = 0;
    for (nfds_t i = 0; i < count; ++i) {
      polled[i].revents = polled[i].fd < 0 ? short{0} : network()->readiness(polled[i].fd, polled[i].events);
      ready += polled[i].revents != 0;
    }
    if (ready > 0 || world.now() >= until) return ready;
    std::vector<pollfd> watched(polled, polled + count);
    self()->polled = &watched;
    static constexpr char kPoll = 0;
    world.block(&kPoll, until);
    self()->polled = nullptr;
  }
}

bool ours(int descriptor) { return world() != nullptr && network() != nullptr && network()->owns(descriptor); }

// The probability that an allocation of a large block fails, in the run's threads.
double no_memory = 0;

}  // namespace torch_remote::simulator

using namespace torch_remote::simulator;  // NOLINT(google-build-using-namespace): all of it is about these

#define SIMULATED extern "C" __attribute__((visibility("default")))
#define REAL(name) static auto* const call = real<decltype(::name)>(#name)

// --- threads and locks -----------------------------------------------------------------------------------------------

SIMULATED int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (World* const w = world()) return w->lock(mutex), 0;
  REAL(pthread_mutex_lock);
  return call(mutex);
}

SIMULATED int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  if (World* const w = world()) {
    w->maybe_switch();
    return w->try_lock(mutex) ? 0 : EBUSY;
  }
  REAL(pthread_mutex_trylock);
  return call(mutex);
}

SIMULATED int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  if (World* const w = world()) return w->unlock(mutex), 0;
  REAL(pthread_mutex_unlock);
  return call(mutex);
}

SIMULATED int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (World* const w = world()) return w->wait(condition, mutex, kNever), 0;
  REAL(pthread_cond_wait);
  return call(condition, mutex);
}

SIMULATED int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  if (World* const w = world()) {
    return w->wait(condition, mutex, deadline(CLOCK_REALTIME, *until)) ? 0 : ETIMEDOUT;
  }
  REAL(pthread_cond_timedwait);
  return call(condition, mutex, until);
}

SIMULATED int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                     const timespec* until) {
  if (World* const w = world()) return w->wait(condition, mutex, deadline(clock, *until)) ? 0 : ETIMEDOUT;
  REAL(pthread_cond_clockwait);
  return call(condition, mutex, clock, until);
}

SIMULATED int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  if (World* const w = world()) {
    w->wake(condition, false);
    w->maybe_switch();
    return 0;
  }
  REAL(pthread_cond_signal);
  return call(condition);
}

SIMULATED int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (World* const w = world()) {
    w->wake(condition, true);
    w->maybe_switch();
    return 0;
  }
  REAL(pthread_cond_broadcast);
  return call(condition);
}

SIMULATED int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                             void* argument) noexcept {
  if (World* const w = world()) return w->create(thread, attributes, start, argument);
  REAL(pthread_create);
  return call(thread, attributes, start, argument);
}

SIMULATED int pthread_join(pthread_t thread, void** result) {
  if (World* const w = world()) return w->join(thread), 0;
  REAL(pthread_join);
  return call(thread, result);
}

SIMULATED int sched_yield() noexcept {
  if (World* const w = world()) return w->yield(), 0;
  REAL(sched_yield);
  return call();
}

// --- time ------------------------------------------------------------------------------------------------------------

SIMULATED int clock_gettime(clockid_t clock, timespec* time) noexcept {
  World* const w = world();
  if (w == nullptr || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME)) {
    REAL(clock_gettime);
    return call(clock, time);
  }
  w->pass(25);
  const Nanoseconds now = w->now() + (clock == CLOCK_REALTIME ? kRealtime : 0);
  *time = {static_cast<time_t>(now / kSecond), static_cast<long>(now % kSecond)};
  return 0;
}

SIMULATED int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  if (World* const w = world()) {
    w->sleep_until((flags & TIMER_ABSTIME) ? deadline(clock, *time) : w->now() + nanoseconds(*time));
    return 0;
  }
  REAL(clock_nanosleep);
  return call(clock, flags, time, left);
}

SIMULATED int nanosleep(const timespec* time, timespec* left) {
  if (World* const w = world()) return w->sleep_until(w->now() + nanoseconds(*time)), 0;
  REAL(nanosleep);
  return call(time, left);
}

SIMULATED int usleep(useconds_t time) {
  if (World* const w = world()) return w->sleep_until(w->now() + time * kMicrosecond), 0;
  REAL(usleep);
  return call(time);
}

// --- descriptors -----------------------------------------------------------------------------------------------------

SIMULATED int poll(pollfd* polled, nfds_t count, int timeout) {
  if (count > 0 && ours(polled[0].fd)) {
    return poll_until(polled, count,
                      timeout < 0 ? kNever : world()->now() + static_cast<Nanoseconds>(timeout) * kMillisecond);
  }
  REAL(poll);
  return call(polled, count, timeout);
}

SIMULATED int ppoll(pollfd* polled, nfds_t count, const timespec* timeout, const sigset_t* signals) {
  if (count > 0 && ours(polled[0].fd)) {
    return poll_until(polled, count, timeout == nullptr ? kNever : world()->now() + nanoseconds(*timeout));
  }
  REAL(ppoll);
  return call(polled, count, timeout, signals);
}

// NOLINTBEGIN(bugprone-reserved-identifier): glibc's names of calls whose buffers it checks
SIMULATED int __poll_chk(pollfd* polled, nfds_t count, int timeout, size_t) { return poll(polled, count, timeout); }
SIMULATED int __ppoll_chk(pollfd* polled, nfds_t count, const timespec* timeout, const sigset_t* signals, size_t) {
  return ppoll(polled, count, timeout, signals);
}
// NOLINTEND(bugprone-reserved-identifier)

SIMULATED int eventfd(unsigned count, int flags) noexcept {
  if (world() != nullptr && network() != nullptr) return network()->make_event(count);
  REAL(eventfd);
  return call(count, flags);
}

// Simulated processes get no signals.
SIMULATED int signalfd(int descriptor, const sigset_t* signals, int flags) noexcept {
  if (world() != nullptr && network() != nullptr) return network()->make_event(0);
  REAL(signalfd);
  return call(descriptor, signals, flags);
}

SIMULATED ssize_t read(int descriptor, void* to, size_t size) {
  if (ours(descriptor)) return network()->receive(descriptor, &to, &size, 1, nullptr);
  REAL(read);
  return call(descriptor, to, size);
}
// NOLINTNEXTLINE(bugprone-reserved-identifier)
SIMULATED ssize_t __read_chk(int descriptor, void* to, size_t size, size_t) { return read(descriptor, to, size); }

SIMULATED ssize_t write(int descriptor, const void* from, size_t size) {
  if (ours(descriptor)) return network()->send(descriptor, &from, &size, 1, -1);
  REAL(write);
  return call(descriptor, from, size);
}

SIMULATED int close(int descriptor) {
  if (ours(descriptor)) return network()->close(descriptor);
  REAL(close);
  return call(descriptor);
}

SIMULATED int socket(int domain, int type, int protocol) noexcept {
  if (world() != nullptr && network() != nullptr && domain == AF_INET) return network()->make_socket();
  REAL(socket);
  return call(domain, type, protocol);
}

SIMULATED int socketpair(int domain, int type, int protocol, int ends[2]) noexcept {
  if (world() != nullptr && network() != nullptr) return network()->make_pair(ends);
  REAL(socketpair);
  return call(domain, type, protocol, ends);
}

SIMULATED int connect(int socket, const sockaddr* address, socklen_t size) {
  if (ours(socket)) return network()->connect(socket);
  REAL(connect);
  return call(socket, address, size);
}

SIMULATED int accept4(int socket, sockaddr* address, socklen_t* size, int flags) {
  if (ours(socket)) return network()->accept(socket);
  REAL(accept4);
  return call(socket, address, size, flags);
}

SIMULATED int shutdown(int socket, int how) noexcept {
  if (ours(socket)) return how == SHUT_WR ? network()->shut_down_writing(socket) : network()->shut_down(socket);
  REAL(shutdown);
  return call(socket, how);
}

SIMULATED int setsockopt(int socket, int level, int option, const void* value, socklen_t size) noexcept {
  if (ours(socket)) return 0;
  REAL(setsockopt);
  return call(socket, level, option, value, size);
}

SIMULATED int getsockopt(int socket, int level, int option, void* value, socklen_t* size) noexcept {
  if (ours(socket)) {
    const int answer = option == SO_ERROR ? network()->socket_error(socket) : 0;
    std::memcpy(value, &answer, std::min<size_t>(*size, sizeof(answer)));
    return 0;
  }
  REAL(getsockopt);
  return call(socket, level, option, value, size);
}

namespace {

int local_address(sockaddr* address, socklen_t* size) {
  sockaddr_in local{};
  local.sin_family = AF_INET;
  local.sin_port = htons(4500);
  local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(address, &local, std::min<size_t>(*size, sizeof(local)));
  *size = sizeof(local);
  return 0;
}

}  // namespace

SIMULATED int getsockname(int socket, sockaddr* address, socklen_t* size) noexcept {
  if (ours(socket)) return local_address(address, size);
  REAL(getsockname);
  return call(socket, address, size);
}

SIMULATED int getpeername(int socket, sockaddr* address, socklen_t* size) noexcept {
  if (ours(socket)) return local_address(address, size);
  REAL(getpeername);
  return call(socket, address, size);
}

SIMULATED ssize_t send(int socket, const void* from, size_t size, int flags) {
  if (ours(socket)) {
    world()->maybe_switch();
    return network()->send(socket, &from, &size, 1, -1);
  }
  REAL(send);
  return call(socket, from, size, flags);
}

SIMULATED ssize_t recv(int socket, void* to, size_t size, int flags) {
  if (ours(socket)) {
    world()->maybe_switch();
    return network()->receive(socket, &to, &size, 1, nullptr);
  }
  REAL(recv);
  return call(socket, to, size, flags);
}
// NOLINTNEXTLINE(bugprone-reserved-identifier)
SIMULATED ssize_t __recv_chk(int socket, void* to, size_t size, size_t, int flags) {
  return recv(socket, to, size, flags);
}

SIMULATED ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  if (ours(socket)) {
    world()->maybe_switch();
    std::vector<const void*> pieces;
    std::vector<size_t> sizes;
    for (size_t i = 0; i < message->msg_iovlen; ++i) {
      pieces.push_back(message->msg_iov[i].iov_base);
      sizes.push_back(message->msg_iov[i].iov_len);
    }
    int passed = -1;
    const cmsghdr* const control = CMSG_FIRSTHDR(message);
    if (control != nullptr) std::memcpy(&passed, CMSG_DATA(control), sizeof(passed));
    return network()->send(socket, pieces.data(), sizes.data(), pieces.size(), passed);
  }
  REAL(sendmsg);
  return call(socket, message, flags);
}

SIMULATED ssize_t recvmsg(int socket, msghdr* message, int flags) {
  if (ours(socket)) {
    world()->maybe_switch();
    std::vector<void*> pieces;
    std::vector<size_t> sizes;
    for (size_t i = 0; i < message->msg_iovlen; ++i) {
      pieces.push_back(message->msg_iov[i].iov_base);
      sizes.push_back(message->msg_iov[i].iov_len);
    }
    int passed = -1;
    const ssize_t n = network()->receive(socket, pieces.data(), sizes.data(), pieces.size(), &passed);
    message->msg_flags = 0;
    if (passed < 0) {
      message->msg_controllen = 0;
      return n;
    }
    cmsghdr* const part = CMSG_FIRSTHDR(message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &passed, sizeof(passed));
    message->msg_controllen = CMSG_SPACE(sizeof(int));
    return n;
  }
  REAL(recvmsg);
  return call(socket, message, flags);
}

// --- chance and memory -----------------------------------------------------------------------------------------------

SIMULATED ssize_t getrandom(void* to, size_t size, unsigned flags) {
  if (World* const w = world()) {
    for (size_t i = 0; i < size; ++i) static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(w->random().next());
    return static_cast<ssize_t>(size);
  }
  REAL(getrandom);
  return call(to, size, flags);
}

SIMULATED void* aligned_alloc(size_t alignment, size_t size) noexcept {
  World* const w = world();
  if (w != nullptr && size >= 32 << 10 && no_memory > 0 && w->random().chance(no_memory)) {
    network()->count(Fault::kNoMemory);
    errno = ENOMEM;
    return nullptr;
  }
  REAL(aligned_alloc);
  return call(alignment, size);
}
