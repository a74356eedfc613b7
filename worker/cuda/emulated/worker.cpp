#include "worker/cuda/emulated/open.h"
#include "worker/main.h"

// For tests: the worker, on a GPU in software.
int main(int argc, char** argv) {
  return torch_remote::worker::run_worker(argc, argv, torch_remote::worker::cuda::emulated::open_device);
}
