// For tests: a libcuda.so.1 that accepts any kernel image and does nothing else. With it, cuDNN compiles kernels
// without a GPU. It has the functions that cuDNN 9.20 and 9.28 look up.
#include <cstddef>

namespace {

int thing = 0;  // the value of every handle
constexpr int kUnknown = 999;

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the driver's names
#pragma GCC visibility push(default)
extern "C" {

int cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  *library = &thing;
  return 0;
}
int cuLibraryUnload(void*) { return 0; }
int cuLibraryGetKernel(void** kernel, void*, const char*) {
  *kernel = &thing;
  return 0;
}
int cuKernelGetFunction(void** function, void*) {
  *function = &thing;
  return 0;
}
int cuKernelSetAttribute(int, int, void*, int) { return 0; }
int cuKernelGetAttribute(int* value, int, void*, int) {
  *value = 0;
  return 0;
}
int cuModuleLoadData(void** module, const void*) {
  *module = &thing;
  return 0;
}
int cuModuleUnload(void*) { return 0; }
int cuModuleGetFunction(void** function, void*, const char*) {
  *function = &thing;
  return 0;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuOccupancyMaxActiveClusters(int* count, void*, const void*) {
  *count = 1;
  return 0;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, void*, int, size_t) {
  *count = 1;
  return 0;
}

#define TORCH_REMOTE_REFUSES(name) \
  int name() { return kUnknown; }
TORCH_REMOTE_REFUSES(cuGetErrorName)
TORCH_REMOTE_REFUSES(cuGetErrorString)
TORCH_REMOTE_REFUSES(cuCtxGetCurrent)
TORCH_REMOTE_REFUSES(cuCtxGetLimit)
TORCH_REMOTE_REFUSES(cuCtxPopCurrent)
TORCH_REMOTE_REFUSES(cuCtxPushCurrent)
TORCH_REMOTE_REFUSES(cuStreamGetCtx)
TORCH_REMOTE_REFUSES(cuDriverGetVersion)
TORCH_REMOTE_REFUSES(cuLinkCreate)
TORCH_REMOTE_REFUSES(cuLinkAddData)
TORCH_REMOTE_REFUSES(cuLinkComplete)
TORCH_REMOTE_REFUSES(cuLinkDestroy)
TORCH_REMOTE_REFUSES(cuLaunchKernel)
TORCH_REMOTE_REFUSES(cuLaunchKernelEx)
TORCH_REMOTE_REFUSES(cuLaunchCooperativeKernel)
TORCH_REMOTE_REFUSES(cuDeviceGetCount)
TORCH_REMOTE_REFUSES(cuDeviceGet)
TORCH_REMOTE_REFUSES(cuLibraryLoadFromFile)
TORCH_REMOTE_REFUSES(cuOccupancyMaxPotentialClusterSize)
TORCH_REMOTE_REFUSES(cuTensorMapEncodeIm2col)
TORCH_REMOTE_REFUSES(cuTensorMapEncodeTiled)

}  // extern "C"
#pragma GCC visibility pop
// NOLINTEND(readability-identifier-naming)
