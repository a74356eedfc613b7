#pragma once

// The fallbacks of shims.cpp for functions that the C library lacks; declared for tests.

#include <pthread.h>
#include <spawn.h>
#include <time.h>

namespace torch_remote::glibc {

// Implements pthread_cond_clockwait with pthread_cond_timedwait, which uses CLOCK_REALTIME.
int wait_on_realtime_clock(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* deadline);

// Implements posix_spawn_file_actions_addclosefrom_np: adds a close action for each descriptor that is open now.
int add_close_actions(posix_spawn_file_actions_t* actions, int from);

}  // namespace torch_remote::glibc
