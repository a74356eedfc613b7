#pragma once

// Memory of a buffer, as devices give it and runners take it. Plain C: it crosses the interface of plugins
// (worker/runner/plugin.h).

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// `data` is an address in the device's memory: only the device's calls and its runners may use what lies there. May be
// null for 0 bytes. `release(owner)` gives the memory back; whoever holds the tr_buffer calls it once.
typedef struct tr_buffer {
  void* data;
  uint64_t nbytes;
  void* owner;
  void (*release)(void* owner);
} tr_buffer;

#ifdef __cplusplus
}
#endif
