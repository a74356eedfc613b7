#pragma once

#include <cstdint>
#include <string>

// The machine that the worker runs on.
namespace torch_remote::worker {

// Bytes that this process may use: physical memory, or the control group's limit if that is less.
uint64_t machine_memory();
// What of that nobody uses now.
uint64_t available_memory();

// "AMD EPYC 7R13 Processor", or its architecture if it does not tell.
std::string processor_name();
// Of its cores, those that this process may run on.
unsigned processor_cores();

}  // namespace torch_remote::worker
