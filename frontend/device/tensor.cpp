#include "frontend/device/tensor.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "frontend/device/current_device.h"
#include "ir/trace.h"

namespace torch_remote::frontend {
namespace {

// Tokens are addresses 64 bytes apart, like real allocations, in reserved address space without access. A second array
// maps each token to the storage that owns it. Tokens are reused, first by the thread that freed them, so the array
// touches only as many pages as there are live storages.
constexpr uint64_t kTokens = uint64_t{1} << 28;
constexpr uint64_t kTokenStride = 64;

struct TokenSpace {
  char* base;
  std::atomic<RemoteStorage*>* owners;
};

const TokenSpace& token_space() {
  static const TokenSpace space = [] {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* base = mmap(nullptr, kTokens * kTokenStride, PROT_NONE, kFlags, -1, 0);
    void* owners = mmap(nullptr, kTokens * sizeof(RemoteStorage*), PROT_READ | PROT_WRITE, kFlags, -1, 0);
    TORCH_CHECK(base != MAP_FAILED && owners != MAP_FAILED,
                "remote: cannot reserve address space for tensor tokens (mmap failed); raise the limit `ulimit -v`");
    return TokenSpace{static_cast<char*>(base), static_cast<std::atomic<RemoteStorage*>*>(owners)};
  }();
  return space;
}

std::atomic<uint64_t> next_token{0};

// Free tokens, one list per thread. The thread-local is a raw pointer, so that its use needs no call. Full lists, and
// the lists of threads that ended, go to `spare`, where any thread takes them.
struct FreeTokens {
  static constexpr uint32_t kMost = 4096;
  uint32_t count = 0;
  std::array<uint32_t, kMost> tokens;
  FreeTokens* next = nullptr;  // next list in `spare`
};
// Initial-exec TLS is read without a call. It takes 8 bytes of the static TLS that libc reserves for such libraries.
[[gnu::tls_model("initial-exec")]] constinit thread_local FreeTokens* free_tokens = nullptr;
constinit std::mutex spare_mutex;
std::atomic<FreeTokens*> spare{nullptr};  // changed with spare_mutex held

struct ThreadEnd {
  ~ThreadEnd() {
    std::lock_guard lock(spare_mutex);
    free_tokens->next = spare.exchange(free_tokens);
    free_tokens = nullptr;
  }
};

uint64_t take_token() {
  if (free_tokens != nullptr && free_tokens->count == 0 && spare.load(std::memory_order_relaxed) != nullptr) {
    std::lock_guard lock(spare_mutex);
    if (FreeTokens* list = spare) {
      spare = list->next;
      delete std::exchange(free_tokens, list);
    }
  }
  if (free_tokens != nullptr && free_tokens->count > 0) return free_tokens->tokens[--free_tokens->count];
  const uint64_t token = next_token.fetch_add(1, std::memory_order_relaxed);
  TORCH_CHECK(token < kTokens, "remote: more than ", kTokens, " tensors are alive");
  return token;
}

void give_token(uint64_t token) {
  if (free_tokens == nullptr || free_tokens->count == FreeTokens::kMost) {
    auto* list = new FreeTokens;
    std::lock_guard lock(spare_mutex);
    if (free_tokens != nullptr) free_tokens->next = spare.exchange(free_tokens);
    free_tokens = list;
    thread_local ThreadEnd at_end;
  }
  free_tokens->tokens[free_tokens->count++] = static_cast<uint32_t>(token);
}

uint64_t token_number(const void* address) {
  return static_cast<uint64_t>(static_cast<const char*>(address) - token_space().base) / kTokenStride;
}

bool is_token(const void* address) {
  const auto* at = static_cast<const char*>(address);
  return at >= token_space().base && at < token_space().base + kTokens * kTokenStride;
}

c10::intrusive_ptr<c10::StorageImpl> make_remote_storage(c10::StorageImpl::use_byte_size_t, c10::SymInt nbytes,
                                                         c10::DataPtr data, c10::Allocator* allocator, bool resizable) {
  // Called for torch.UntypedStorage(n, device=...), after torch has made that device the current one.
  if (data.get() == nullptr) data = make_token(data.device().has_index() ? data.device().index() : current_device());
  return c10::make_intrusive<RemoteStorage>(std::move(nbytes), std::move(data), allocator, resizable);
}

const c10::DispatchKeySet kKeySet(c10::DispatchKey::PrivateUse1);

}  // namespace

c10::Storage new_storage(int64_t nbytes, c10::DeviceIndex device) {
  return c10::Storage(c10::make_intrusive<RemoteStorage>(c10::SymInt(nbytes), make_token(device),
                                                         c10::GetAllocator(c10::DeviceType::PrivateUse1), true));
}

at::DataPtr make_token(c10::DeviceIndex device) {
  return at::DataPtr(token_space().base + take_token() * kTokenStride,
                     c10::Device(c10::DeviceType::PrivateUse1, device));
}

RemoteStorage* storage_of_token(const void* token) {
  RemoteStorage* storage = is_token(token) ? token_space().owners[token_number(token)].load() : nullptr;
  TORCH_CHECK(
      storage != nullptr,
      "remote: this tensor's memory does not belong to the device; create tensors with torch.empty or .to(\"remote\")");
  return storage;
}

void (*on_storage_destroyed)(RemoteStorage*) noexcept = nullptr;

RemoteStorage::RemoteStorage(c10::SymInt nbytes, at::DataPtr data, c10::Allocator* allocator, bool resizable)
    : StorageImpl(use_byte_size_t(), std::move(nbytes), std::move(data), allocator, resizable) {
  token_ = this->data();
  if (is_token(token_)) token_space().owners[token_number(token_)].store(this, std::memory_order_release);
}

RemoteStorage::~RemoteStorage() { forget(); }

void RemoteStorage::release_resources() {
  forget();
  StorageImpl::release_resources();
}

void RemoteStorage::forget() noexcept {
  // A storage that was never recorded or uploaded needs no call to the recorder.
  if (id != 0 || buffer.epoch != 0) on_storage_destroyed(this);
  if (!is_token(token_)) return;
  const uint64_t number = token_number(std::exchange(token_, nullptr));
  token_space().owners[number].store(nullptr, std::memory_order_release);
  give_token(number);
}

template <typename Version>
c10::intrusive_ptr<c10::TensorImpl> RemoteTensorImpl::copy(Version&& version_counter,
                                                           bool allow_tensor_metadata_change) const {
  // Python subclasses and dispatch modes must see a detach, which the base class implements.
  if (c10::impl::TorchDispatchModeTLS::stack_len() > 0 || key_set_.has(c10::DispatchKey::Python)) {
    return TensorImpl::shallow_copy_and_detach(std::forward<Version>(version_counter), allow_tensor_metadata_change);
  }
  auto impl = c10::make_intrusive<RemoteTensorImpl>(c10::Storage(storage()), key_set_, data_type_);
  copy_tensor_metadata(this, impl.get(), std::forward<Version>(version_counter), allow_tensor_metadata_change);
  impl->view = std::atomic_ref(view).load(std::memory_order_relaxed);
  return impl;
}

c10::intrusive_ptr<c10::TensorImpl> RemoteTensorImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter, bool allow_tensor_metadata_change) const {
  return copy(version_counter, allow_tensor_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> RemoteTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                                              bool allow_tensor_metadata_change) const {
  return copy(std::move(version_counter), allow_tensor_metadata_change);
}

void RemoteTensorImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  TensorImpl::shallow_copy_from(impl);
  view = {};
}

void check_rank(c10::IntArrayRef sizes) {
  TORCH_CHECK(sizes.size() <= ir::kMaxRank, "remote: only tensors with up to ", ir::kMaxRank,
              " dims are supported on the device, got one of ", sizes.size(),
              "; merge some with .reshape(...), or keep it on the CPU");
}

at::Tensor make_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                       c10::DeviceIndex device) {
  check_rank(sizes);
  const auto meta = c10::scalarTypeToTypeMeta(dtype);
  const int64_t nbytes = static_cast<int64_t>(at::detail::computeStorageNbytes(sizes, strides, meta.itemsize()));
  auto impl = c10::make_intrusive<RemoteTensorImpl>(new_storage(nbytes, device), kKeySet, meta);
  impl->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(impl));
}

at::Tensor make_contiguous_tensor(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::DeviceIndex device) {
  check_rank(sizes);
  const auto meta = c10::scalarTypeToTypeMeta(dtype);
  const int64_t nbytes = static_cast<int64_t>(at::detail::computeStorageNbytesContiguous(sizes, meta.itemsize()));
  auto impl = c10::make_intrusive<RemoteTensorImpl>(new_storage(nbytes, device), kKeySet, meta);
  if (sizes.size() != 1 || sizes[0] != 0) impl->set_sizes_contiguous(sizes);
  return at::Tensor(std::move(impl));
}

at::Tensor make_view(const at::Tensor& base, c10::Storage storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes,
                     c10::IntArrayRef strides, int64_t offset) {
  check_rank(sizes);
  auto impl = c10::make_intrusive<RemoteTensorImpl>(c10::TensorImpl::VIEW, std::move(storage), base.key_set(), dtype);
  impl->set_sizes_and_strides(sizes, strides, offset);
  return at::Tensor(std::move(impl));
}

at::Tensor tensor_over_storage(c10::Storage storage, c10::ScalarType dtype, c10::IntArrayRef sizes,
                               c10::IntArrayRef strides, int64_t offset) {
  auto impl = c10::make_intrusive<RemoteTensorImpl>(std::move(storage), kKeySet, c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_and_strides(sizes, strides, offset);
  return at::Tensor(std::move(impl));
}

at::Tensor make_view(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  return make_view(base, c10::Storage(base.storage()), base.dtype(), sizes, strides, offset);
}

void register_storage() { c10::SetStorageImplCreate(c10::DeviceType::PrivateUse1, &make_remote_storage); }

}  // namespace torch_remote::frontend
