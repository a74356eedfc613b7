#include "codegen/gpu/testing/emulated.h"

#include <algorithm>
#include <string>
#include <vector>

#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"

namespace torch_remote::codegen::gpu::testing {
namespace {

// Device memory that is freed with this object.
class Allocations {
 public:
  explicit Allocations(emulator::DeviceMemory& memory) : memory_(memory) {}
  Allocations(const Allocations&) = delete;
  ~Allocations() {
    for (void* address : all_) (void)memory_.free(address);
  }
  Status add(size_t bytes, const std::string& name, void** address) {
    Status status = memory_.allocate(std::max<size_t>(bytes, 1), address, name);
    if (status.ok()) all_.push_back(*address);
    return status;
  }

 private:
  emulator::DeviceMemory& memory_;
  std::vector<void*> all_;
};

uint64_t number(const void* address) { return reinterpret_cast<uint64_t>(address); }

}  // namespace

Status Emulated::make(const Kernel& kernel, const GpuTarget& target, std::unique_ptr<Emulated>* made) {
  auto result = std::make_unique<Emulated>();
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> module;
  Status status = compile_to_llvm(kernel, target, context, &module, &result->recipe_);
  if (!status.ok()) return status;
  result->device_ = std::make_unique<emulator::Device>(size_t{1} << 30);
  status = emulator::Module::load(*result->device_, *module, &result->module_);
  *made = std::move(result);
  return status;
}

Status Emulated::run(const Arguments& arguments, std::span<const std::span<uint8_t>> buffers,
                     const emulator::LaunchOptions& options, IndexRecord* failure, int64_t rest, bool elsewhere) {
  emulator::DeviceMemory& memory = device_->memory();
  Allocations allocations(memory);
  std::vector<void*> copies(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    Status status = allocations.add(buffers[i].size(), "buffer " + std::to_string(i), &copies[i]);
    if (status.ok() && !buffers[i].empty()) status = memory.write(copies[i], buffers[i].data(), buffers[i].size());
    if (!status.ok()) return status;
  }
  std::vector<uint64_t> data;
  for (const void* pointer : arguments.data) {
    const auto* const at = static_cast<const uint8_t*>(pointer);
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (at < buffers[i].data() || at > buffers[i].data() + buffers[i].size()) continue;
      data.push_back(number(copies[i]) + static_cast<uint64_t>(at - buffers[i].data()));
      break;
    }
  }
  void *record = nullptr, *scratch = nullptr;
  *failure = {};
  Status status = allocations.add(sizeof(IndexRecord), "failure", &record);
  if (status.ok()) status = memory.write(record, failure, sizeof(IndexRecord));
  if (status.ok()) status = allocations.add(scratch_bytes(recipe_, arguments.sizes, rest), "scratch", &scratch);
  if (!status.ok()) return status;
  std::vector<uint64_t> given(arguments.scalars.begin(), arguments.scalars.end()), words = given;
  words.push_back(number(record));
  void* numbers = nullptr;
  if (elsewhere) {
    for (uint64_t& scalar : given) scalar = ~scalar;
    status = allocations.add(8 * words.size(), "numbers", &numbers);
    if (status.ok()) status = memory.write(numbers, words.data(), 8 * words.size());
    if (!status.ok()) return status;
  }
  const Call call{.sizes = arguments.sizes,
                  .data = data,
                  .strides = arguments.strides,
                  .bounds = arguments.bounds,
                  .scalars = given,
                  .remainder_columns = rest,
                  .scratch = number(scratch),
                  .failure = elsewhere ? (number(numbers) + 8 * given.size()) | kIndirectRecord : number(record),
                  .scalars_address = number(numbers),
                  .processors = 1};
  status = launch(call, options);
  if (status.ok()) status = memory.read(failure, record, sizeof(IndexRecord));
  for (size_t i = 0; i < buffers.size() && status.ok(); ++i) {
    if (!buffers[i].empty()) status = memory.read(buffers[i].data(), copies[i], buffers[i].size());
  }
  return status;
}

Status Emulated::launch(const Call& call, const emulator::LaunchOptions& options) {
  std::vector<Launch> launches;
  if (Status status = make_launches(recipe_, call, &launches); !status.ok()) return status;
  for (Launch& launch : launches) {
    std::vector<void*> parameters;
    for (uint64_t& parameter : launch.parameters) parameters.push_back(&parameter);
    const Status status =
        module_->launch(name(launch.function), {.x = launch.grid}, {.x = launch.block[0], .y = launch.block[1]},
                        launch.shared_bytes, parameters.data(), options);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace torch_remote::codegen::gpu::testing
