#pragma once

// Memory of a buffer, as devices provide it and runners use it. It is plain C because it is part of the plugin ABI
// (worker/runner/plugin.h).

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// `data` is an address in the device's memory: only the device's calls and its runners may access it. It may be null
// for 0 bytes. `release(owner)` frees the memory; the holder of the tr_buffer calls it once.
typedef struct tr_buffer {
  void* data;
  uint64_t nbytes;
  void* owner;
  void (*release)(void* owner);
} tr_buffer;

#ifdef __cplusplus
}
#endif
