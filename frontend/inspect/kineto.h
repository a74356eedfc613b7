#pragma once

// torch.profiler: what the workers do appears in its tables and traces (ProfilerActivity.PrivateUse1), by the plug-in
// interface of its library, kineto; and the older autograd profiler's markers.
namespace torch_remote::frontend {

// Called once, at import; starts nothing.
void register_profilers();

}  // namespace torch_remote::frontend
