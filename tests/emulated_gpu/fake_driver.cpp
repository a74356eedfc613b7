// For tests: a libcuda.so.1 that only identifies itself. $FAKE_DRIVER_VERSION is its version, $FAKE_DRIVER_LACKS a
// function that is missing, and $FAKE_DRIVER_INIT the result of cuInit.
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

int number(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::atoi(value) : 0;
}

int init(unsigned) { return number("FAKE_DRIVER_INIT"); }
int get_text(int, const char** text) {
  *text = "text";
  return 0;
}
int anything() { return 801; }

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  *version = number("FAKE_DRIVER_VERSION");
  return 0;
}

__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t,
                                                               int* found) {
  *found = 0;
  *function = nullptr;
  const char* lacks = std::getenv("FAKE_DRIVER_LACKS");
  if (version != 12000 || (lacks != nullptr && std::strcmp(lacks, name) == 0)) {
    *found = 1;
    return 500;
  }
  *function = reinterpret_cast<void*>(anything);
  if (std::strcmp(name, "cuInit") == 0) *function = reinterpret_cast<void*>(init);
  if (std::strncmp(name, "cuGetError", 10) == 0) *function = reinterpret_cast<void*>(get_text);
  if (std::strcmp(name, "cuDriverGetVersion") == 0) *function = reinterpret_cast<void*>(cuDriverGetVersion);
  return 0;
}
}
