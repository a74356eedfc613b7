#include "tests/emulated_gpu/open.h"
#include "worker/process/main.h"

// For tests: the worker, on an emulated GPU.
int main(int argc, char** argv) {
  using namespace torch_remote::worker;
  cuda::emulated::tell_calls();
  return run_worker(argc, argv,
                    {.open_device = cuda::emulated::open_device,
                     .gpu_opener = cuda::emulated::device_opener,
                     .probed = cuda::emulated::probe_source()});
}
