#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "tests/emulated_gpu/emulator/memory.h"
#include "tests/emulated_gpu/machine.h"

// Memory that is shared between processes.
namespace torch_remote::worker::cuda::emulated {
namespace {

constexpr size_t kPage = 4096;
constexpr uint64_t kMagic = 0x6870495F64756C45;

// The contents of an IPC handle.
struct Contents {
  uint64_t magic = kMagic;
  int64_t process = 0, descriptor = 0;
  uint64_t inode = 0, bytes = 0;
  int64_t device = 0;
};
static_assert(sizeof(Contents) <= sizeof(IpcMemoryHandle));

uint64_t inode_of(int descriptor) {
  struct stat found{};
  return ::fstat(descriptor, &found) == 0 ? found.st_ino : 0;
}

// Also maps the page with the counter.
std::shared_ptr<SharedFile> take(int descriptor, size_t bytes) {
  if (descriptor < 0) return nullptr;
  auto file = std::make_shared<SharedFile>();
  file->descriptor = descriptor;
  file->inode = inode_of(descriptor);
  void* const page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, static_cast<off_t>(bytes));
  if (page == MAP_FAILED) return nullptr;
  file->open_count = static_cast<std::atomic<uint64_t>*>(page);
  return file;
}

Result get_mem_handle(IpcMemoryHandle* handle, DevicePointer address) {
  Call call("cuIpcGetMemHandle");
  if (!call.ready()) return call.error;
  const auto found = call.machine->allocations.find(address);
  if (found == call.machine->allocations.end() || found->second.gpu != call.gpu || found->second.freeing ||
      found->second.file == nullptr || found->second.is_imported) {
    return Result::kInvalidValue;  // also refuses memory of pools and of other processes
  }
  const Allocation& allocation = found->second;
  const Contents contents{kMagic,           ::getpid(),       allocation.file->descriptor, allocation.file->inode,
                          allocation.bytes, call.gpu->ordinal};
  std::memcpy(handle->bytes, &contents, sizeof(contents));
  return Result::kSuccess;
}

Result open_mem_handle(DevicePointer* address, IpcMemoryHandle handle, unsigned flags) {
  Call call("cuIpcOpenMemHandle");
  if (!call.ready()) return call.error;
  Contents contents;
  std::memcpy(&contents, handle.bytes, sizeof(contents));
  if (contents.magic != kMagic || flags > kIpcLazyPeerAccess) return Result::kInvalidValue;
  if (contents.process == ::getpid()) return Result::kInvalidContext;
  Machine& machine = *call.machine;
  if (machine.options.peer_access == Options::PeerAccess::kRefused ||
      (flags == 0 && contents.device != call.gpu->ordinal)) {
    return Result::kPeerAccessUnsupported;
  }
  for (auto& [begin, allocation] : machine.allocations) {
    if (!allocation.is_imported || allocation.gpu != call.gpu || allocation.file->inode != contents.inode) continue;
    ++allocation.open_count;
    *address = begin;
    return Result::kSuccess;
  }
  const std::string path = "/proc/" + std::to_string(contents.process) + "/fd/" + std::to_string(contents.descriptor);
  const auto file = SharedFile::open(path.c_str(), emulator::DeviceMemory::file_bytes(contents.bytes));
  if (file == nullptr || file->inode != contents.inode) return Result::kInvalidHandle;
  // Garbled memory is a separate file, whose bytes differ from the other process's.
  const bool garbled = machine.options.peer_access == Options::PeerAccess::kGarbled;
  const auto mapped = garbled ? SharedFile::make(emulator::DeviceMemory::file_bytes(contents.bytes)) : file;
  void* made = nullptr;
  if (mapped == nullptr ||
      !call.gpu->device->memory().map(mapped->descriptor, contents.bytes, /*fresh=*/garbled, &made).ok()) {
    return Result::kOutOfMemory;
  }
  *address = reinterpret_cast<uint64_t>(made) | call.gpu->tag;
  ++*file->open_count;
  machine.allocations[*address] = {call.gpu, contents.bytes, nullptr, false, file, /*is_imported=*/true, 1};
  return Result::kSuccess;
}

// Later accesses to the address fault.
Result close_mem_handle(DevicePointer address) {
  Call call("cuIpcCloseMemHandle");
  if (!call.ready()) return call.error;
  const auto found = call.machine->allocations.find(address);
  if (found == call.machine->allocations.end() || found->second.gpu != call.gpu || !found->second.is_imported) {
    return Result::kInvalidValue;
  }
  if (--found->second.open_count != 0) return Result::kSuccess;
  --*found->second.file->open_count;
  call.machine->release(address);
  return Result::kSuccess;
}

}  // namespace

std::shared_ptr<SharedFile> SharedFile::make(size_t bytes) {
  const int descriptor = ::memfd_create("emulated GPU", MFD_CLOEXEC);
  if (descriptor < 0 || ::ftruncate(descriptor, static_cast<off_t>(bytes + kPage)) != 0) {
    if (descriptor >= 0) ::close(descriptor);
    return nullptr;
  }
  return take(descriptor, bytes);
}

std::shared_ptr<SharedFile> SharedFile::open(const char* path, size_t bytes) {
  return take(::open(path, O_RDWR | O_CLOEXEC), bytes);
}

SharedFile::~SharedFile() {
  if (open_count != nullptr) (void)::munmap(open_count, kPage);
  if (descriptor >= 0) (void)::close(descriptor);
}

bool has_no_other_user(const Allocation& allocation) {
  return allocation.file == nullptr || *allocation.file->open_count == 0;
}

void add_shared_memory_functions(Driver& driver) {
  driver.ipc_get_mem_handle = get_mem_handle;
  driver.ipc_open_mem_handle = open_mem_handle;
  driver.ipc_close_mem_handle = close_mem_handle;
}

}  // namespace torch_remote::worker::cuda::emulated
