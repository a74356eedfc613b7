#pragma once

#include <c10/core/Storage.h>

#include "worker/runner/plugin.h"

// Makes torch's CPU allocator take memory from the plugin's host (tr_host), so that an op's result can be handed over
// as a buffer.
namespace torch_remote::worker::aten {

// Replaces torch's CPU allocator in the whole process from now on. `host` must live until `reset_host_memory`.
void use_host_memory(const tr_host* host);
void reset_host_memory();

// Allocates memory of the host for callers that keep only its address. Returns null for 0 bytes. Throws
// c10::OutOfMemoryError.
void* allocate_memory(const tr_host& host, uint64_t nbytes);
void free_memory(void* data);

// Returns a buffer that owns the tensor's storage. No other tensor may use the storage.
tr_buffer take_storage(c10::Storage storage);

// Allocates `nbytes` from the host; throws c10::OutOfMemoryError.
tr_buffer allocate(const tr_host& host, uint64_t nbytes);

}  // namespace torch_remote::worker::aten
