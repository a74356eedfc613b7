#include "worker/targets/cuda/device/gpu_list.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>

namespace torch_remote::worker::cuda {
namespace {

constexpr std::string_view kGpu = "GPU-", kMig = "MIG-";

// The driver's name of a part of a GPU contains "MIG 1g.5gb".
bool is_mig(std::string_view name) { return name.find(" MIG ") != std::string_view::npos; }

std::string name_of(const Driver& driver, DeviceNumber device) {
  std::array<char, 256> name{};
  (void)driver.device_get_name(name.data(), static_cast<int>(name.size() - 1), device);
  return name.data();
}

// "cuda:0 NVIDIA L4 (GPU-...), cuda:1 ..."
std::string text_of(const std::vector<ListedGpu>& gpus) {
  std::string text;
  for (const ListedGpu& gpu : gpus) {
    text +=
        (text.empty() ? "" : ", ") + ("cuda:" + std::to_string(gpu.ordinal)) + " " + gpu.name + " (" + gpu.uuid + ")";
  }
  return text.empty() ? "no GPU" : text;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

}  // namespace

std::string uuid_text(const Driver& driver, DeviceNumber device) {
  Uuid uuid{};
  if (driver.device_get_uuid(&uuid, device) != Result::kSuccess) return {};
  std::string text(is_mig(name_of(driver, device)) ? kMig : kGpu);
  for (size_t i = 0; i < std::size(uuid.bytes); ++i) {
    std::array<char, 4> digits{};
    (void)std::snprintf(digits.data(), digits.size(), "%02x", uuid.bytes[i]);
    text += i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
    text += digits.data();
  }
  return text;
}

Status list_gpus(const Driver& driver, std::vector<ListedGpu>* gpus) {
  gpus->clear();
  int count = 0;
  Status status = to_status(driver, driver.device_get_count(&count), "cuDeviceGetCount");
  for (int ordinal = 0; status.ok() && ordinal < count; ++ordinal) {
    DeviceNumber device = 0;
    status = to_status(driver, driver.device_get(&device, ordinal), "cuDeviceGet");
    if (status.ok()) {
      gpus->push_back({.ordinal = ordinal, .name = name_of(driver, device), .uuid = uuid_text(driver, device)});
    }
  }
  return status;
}

bool is_gpu_id(std::string_view text) {
  if (!text.starts_with(kGpu) && !text.starts_with(kMig)) return false;
  text.remove_prefix(kGpu.size());
  return !text.empty() && std::isxdigit(static_cast<unsigned char>(text[0])) != 0 &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isxdigit(c) != 0 || c == '-'; });
}

Status find_gpu(const Driver& driver, std::string_view id, int* ordinal) {
  std::vector<ListedGpu> gpus;
  if (Status status = list_gpus(driver, &gpus); !status.ok()) return status;
  std::vector<int> found;
  const bool is_uuid = is_gpu_id(id);
  const std::string wanted = lower(id);
  for (const ListedGpu& gpu : gpus) {
    if (is_uuid ? lower(gpu.uuid).starts_with(wanted) : std::to_string(gpu.ordinal) == id) found.push_back(gpu.ordinal);
  }
  if (found.size() == 1) {
    *ordinal = found[0];
    return {};
  }
  return {ErrorCode::kUnsupported, "cuda: there is " + std::string(found.empty() ? "no" : "more than one") + " GPU " +
                                       std::string(id) + ": the driver shows " + text_of(gpus) + hidden_gpus() +
                                       "; use one of these numbers or UUIDs"};
}

}  // namespace torch_remote::worker::cuda
