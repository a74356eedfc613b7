#pragma once

// The fallbacks of shims.cpp for functions that the C library lacks; declared for tests.

#include <pthread.h>
#include <spawn.h>
#include <time.h>

namespace torch_remote::glibc {

// Implements pthread_cond_clockwait with the time of day.
int wait_by_time_of_day(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* deadline);

// Implements posix_spawn_file_actions_addclosefrom_np for the descriptors that are open now.
int close_what_is_open(posix_spawn_file_actions_t* actions, int from);

}  // namespace torch_remote::glibc
