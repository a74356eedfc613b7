#include <algorithm>
#include <cctype>
#include <cstring>

#include "tests/emulated_gpu/image_rules.h"
#include "tests/emulated_gpu/machine.h"

// Modules and launches.
namespace torch_remote::worker::cuda::emulated {
namespace {

// LLVM's bitcode wrapper: five words, then the bitcode.
struct Wrapper {
  uint32_t magic = 0x0B17C0DE;
  uint32_t version = 0;
  uint32_t offset = sizeof(Wrapper);
  uint32_t size = 0;
  uint32_t processor = 0;
};

void tell(const std::string& text, unsigned count, const JitOption* options, void** values) {
  char* log = nullptr;
  size_t bytes = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == JitOption::kErrorLog) log = static_cast<char*>(values[i]);
    if (options[i] == JitOption::kErrorLogBytes) bytes = reinterpret_cast<size_t>(values[i]);
  }
  if (log != nullptr && bytes != 0) {
    const size_t length = std::min(text.size(), bytes - 1);
    std::memcpy(log, text.data(), length);
    log[length] = '\0';
  }
}

Result module_load_data_ex(Module* handle, const void* image, unsigned count, JitOption* options, void** values) {
  Call call("cuModuleLoadDataEx");
  if (!call.ready() || !call.may_synchronize()) return call.error;
  if (image == nullptr) return Result::kInvalidValue;
  const ImageFacts facts = read_image(image);
  if (facts.kind != ImageFacts::Kind::kOther) {
    std::string log;
    const Result result = check_image(facts, call.machine->options.driver, call.machine->options.sm, &log);
    tell(log, count, options, values);
    if (result != Result::kSuccess) return result;
  }
  Wrapper wrapper;
  const auto* bytes = static_cast<const char*>(image) + facts.body;
  std::string_view ir;
  if (std::memcmp(bytes, &wrapper.magic, sizeof(wrapper.magic)) == 0) {
    std::memcpy(&wrapper, bytes, sizeof(wrapper));
    ir = {bytes + wrapper.offset, wrapper.size};
  } else if (bytes[0] == ';' || std::isspace(bytes[0]) != 0 || std::isalpha(bytes[0]) != 0) {
    ir = bytes;
  } else {
    return Result::kInvalidImage;
  }
  auto module = std::make_shared<LoadedModule>();
  module->gpu = call.gpu;
  if (const Status status = emulator::Module::load(*call.gpu->device, ir, &module->module); !status.ok()) {
    tell(status.message(), count, options, values);
    return Result::kInvalidImage;
  }
  *handle = call.machine->modules.add(std::move(module));
  return Result::kSuccess;
}

Result module_unload(Module handle) {
  Call call("cuModuleUnload");
  if (!call.ready() || !call.may_synchronize()) return call.error;
  const auto module = call.machine->modules.take(handle);
  if (module == nullptr) return Result::kInvalidHandle;
  for (const Function function : module->functions) call.machine->functions.take(function);
  return Result::kSuccess;  // queued kernels keep the module alive
}

std::shared_ptr<LoadedModule> find_module(Call& call, Module handle) {
  if (!call.ready()) return nullptr;
  auto module = call.machine->modules.find(handle);
  if (module == nullptr) call.error = Result::kInvalidHandle;
  return module;
}

Result module_get_function(Function* handle, Module module_handle, const char* name) {
  Call call("cuModuleGetFunction");
  const auto module = find_module(call, module_handle);
  if (module == nullptr) return call.error;
  auto function = std::make_shared<LoadedFunction>();
  function->module = module;
  function->name = name;
  const Status status = module->module->attributes(name, &function->attributes);
  if (status.code() == ErrorCode::kInvalid) return Result::kNotFound;
  if (!status.ok()) {
    call.machine->findings.push_back(status.message());
    return Result::kInvalidImage;
  }
  *handle = call.machine->functions.add(std::move(function));
  module->functions.push_back(*handle);
  return Result::kSuccess;
}

Result module_get_global(DevicePointer* address, size_t* bytes, Module module_handle, const char* name) {
  Call call("cuModuleGetGlobal");
  const auto module = find_module(call, module_handle);
  if (module == nullptr) return call.error;
  void* place = nullptr;
  size_t size = 0;
  if (!module->module->global(name, &place, &size).ok()) return Result::kNotFound;
  if (address != nullptr) *address = reinterpret_cast<uint64_t>(place) | call.gpu->tag;
  if (bytes != nullptr) *bytes = size;
  return Result::kSuccess;
}

std::shared_ptr<LoadedFunction> find_function(Call& call, Function handle) {
  if (!call.ready()) return nullptr;
  auto function = call.machine->functions.find(handle);
  if (function == nullptr) call.error = Result::kInvalidHandle;
  return function;
}

Result func_get_attribute(int* value, FunctionAttribute attribute, Function handle) {
  Call call("cuFuncGetAttribute");
  const auto function = find_function(call, handle);
  if (function == nullptr) return call.error;
  switch (attribute) {
    case FunctionAttribute::kMaxThreadsPerBlock:
      *value = static_cast<int>(function->attributes.max_threads);
      return Result::kSuccess;
    case FunctionAttribute::kSharedBytes:
      *value = static_cast<int>(function->attributes.shared_bytes);
      return Result::kSuccess;
    case FunctionAttribute::kRegisters:
      *value = 0;  // unknown
      return Result::kSuccess;
    case FunctionAttribute::kMaxDynamicShared:
      *value = function->most_dynamic_shared;
      return Result::kSuccess;
  }
  return Result::kInvalidValue;
}

Result func_set_attribute(Function handle, FunctionAttribute attribute, int value) {
  Call call("cuFuncSetAttribute");
  const auto function = find_function(call, handle);
  if (function == nullptr) return call.error;
  constexpr int kMost = 227 << 10;
  if (attribute != FunctionAttribute::kMaxDynamicShared || value < 0 ||
      value + static_cast<int>(function->attributes.shared_bytes) > kMost) {
    return Result::kInvalidValue;
  }
  function->most_dynamic_shared = value;
  return Result::kSuccess;
}

}  // namespace

Result make_kernel_call(Call& call, const KernelNodeParameters& given, std::shared_ptr<KernelCall>* made) {
  const auto function = call.machine->functions.find(given.function);
  if (function == nullptr) return Result::kInvalidHandle;
  if (function->module->gpu != call.gpu) return Result::kInvalidContext;
  const emulator::Dim3 grid{given.grid_x, given.grid_y, given.grid_z};
  const emulator::Dim3 block{given.block_x, given.block_y, given.block_z};
  const bool fits = grid.count() != 0 && grid.x <= 0x7FFFFFFF && grid.y <= 0xFFFF && grid.z <= 0xFFFF &&
                    block.count() != 0 && block.count() <= 1024 && block.z <= 64;
  if (!fits || given.extra != nullptr) return Result::kInvalidValue;
  if (given.shared_bytes > static_cast<unsigned>(function->most_dynamic_shared)) return Result::kInvalidValue;
  if (block.count() > function->attributes.max_threads) return Result::kLaunchOutOfResources;
  if (given.parameters == nullptr && !function->attributes.parameters.empty()) return Result::kInvalidValue;
  auto kernel = std::make_shared<KernelCall>();
  kernel->handle = given.function;
  kernel->grid = grid;
  kernel->block = block;
  kernel->shared_bytes = given.shared_bytes;
  for (size_t i = 0; i < function->attributes.parameters.size(); ++i) {
    const auto* first = static_cast<const std::byte*>(given.parameters[i]);
    kernel->arguments.emplace_back(first, first + function->attributes.parameters[i]);
  }
  kernel->function = function;
  *made = std::move(kernel);
  return Result::kSuccess;
}

namespace {

Result launch_kernel(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                     unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream handle, void** parameters,
                     void** extra) {
  Call call("cuLaunchKernel");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  std::shared_ptr<KernelCall> kernel;
  const Result result = make_kernel_call(call,
                                         {.function = function,
                                          .grid_x = grid_x,
                                          .grid_y = grid_y,
                                          .grid_z = grid_z,
                                          .block_x = block_x,
                                          .block_y = block_y,
                                          .block_z = block_z,
                                          .shared_bytes = shared_bytes,
                                          .parameters = parameters,
                                          .extra = extra},
                                         &kernel);
  if (result != Result::kSuccess) return result;
  return call.submit(*stream, {NodeType::kKernel, nullptr, std::move(kernel)});
}

}  // namespace

std::vector<uint8_t> make_image(const void* bitcode, size_t bytes) {
  Wrapper wrapper;
  wrapper.size = static_cast<uint32_t>(bytes);
  std::vector<uint8_t> image(sizeof(wrapper) + bytes);
  std::memcpy(image.data(), &wrapper, sizeof(wrapper));
  std::memcpy(image.data() + sizeof(wrapper), bitcode, bytes);
  return image;
}

void add_module_functions(Driver& driver) {
  driver.module_load_data_ex = module_load_data_ex;
  driver.module_unload = module_unload;
  driver.module_get_function = module_get_function;
  driver.module_get_global = module_get_global;
  driver.func_get_attribute = func_get_attribute;
  driver.func_set_attribute = func_set_attribute;
  driver.launch_kernel = launch_kernel;
}

}  // namespace torch_remote::worker::cuda::emulated
