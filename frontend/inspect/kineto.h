#pragma once

// Shows the workers' ops in the tables and traces of torch.profiler (ProfilerActivity.PrivateUse1), through the plugin
// interface of its library kineto. Also implements the markers of the older autograd profiler.
namespace torch_remote::frontend {

// Called once, at import; starts no worker.
void register_profilers();

}  // namespace torch_remote::frontend
