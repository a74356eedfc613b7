#pragma once

// What shims.cpp does where the C library has no such function; elsewhere it calls that. For tests.

#include <pthread.h>
#include <spawn.h>
#include <time.h>

namespace torch_remote::glibc {

// pthread_cond_clockwait by the time of the day.
int wait_by_time_of_day(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* deadline);

// posix_spawn_file_actions_addclosefrom_np for what is open now.
int close_what_is_open(posix_spawn_file_actions_t* actions, int from);

}  // namespace torch_remote::glibc
