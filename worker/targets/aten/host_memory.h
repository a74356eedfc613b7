#pragma once

#include <c10/core/Storage.h>

#include "worker/runner/plugin.h"

// The host's memory as torch's CPU allocator, so that what an op returns can be handed over as a buffer.
namespace torch_remote::worker::aten {

// Takes the place of torch's CPU allocator from now on, in the whole process. `host` must live until `leave`.
void use_host_memory(const tr_host* host);
void leave_host_memory();

// The host's memory for who keeps an address alone. Throws c10::OutOfMemoryError. Null for 0 bytes.
void* take_memory(const tr_host& host, uint64_t nbytes);
void give_memory(void* data);

// A buffer that owns a tensor's storage. Nobody else may hold it.
tr_buffer take_storage(c10::Storage storage);

// `nbytes` from the host; throws c10::OutOfMemoryError.
tr_buffer allocate(const tr_host& host, uint64_t nbytes);

}  // namespace torch_remote::worker::aten
