#include "worker/targets/target.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace torch_remote::worker {
namespace {

// "cpu, cuda:0, cuda:1, ..., reference"
std::string names_of(std::span<const Target> targets) {
  std::string names;
  for (const Target& target : targets) names += (names.empty() ? "" : ", ") + device_names(target);
  return names;
}

// The id of a device of the target, for Target::open.
std::optional<std::string> id_of(std::string_view name, const Target& target) {
  if (name == target.name) return "0";
  if (!target.numbered) return std::nullopt;
  name.remove_prefix(std::min(name.size(), target.name.size() + 1));
  if (target.is_id && target.is_id(name)) return std::string(name);
  int number = -1;
  const auto read = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_number = read.ec == std::errc() && read.ptr == name.data() + name.size() && number >= 0;
  return is_number ? std::optional(std::to_string(number)) : std::nullopt;
}

}  // namespace

std::string device_names(const Target& target) {
  return target.numbered ? target.name + ":0, " + target.name + ":1, ..." : target.name;
}

Status choose_devices(std::string_view text, std::span<const Target> targets, ChosenDevices* chosen) {
  *chosen = {};
  for (;;) {
    const std::string_view name = text.substr(0, text.find(','));
    const auto target = std::ranges::find(targets, name.substr(0, name.find(':')), &Target::name);
    const std::optional<std::string> id = target != targets.end() ? id_of(name, *target) : std::nullopt;
    if (!id) {
      return Status::invalid("'" + std::string(name) + "' is not a device; there are " + names_of(targets));
    }
    if (chosen->target != nullptr && chosen->target != &*target) {
      return Status::invalid("'" + std::string(name) + "' is not a device of '" + chosen->target->name +
                             "': the devices of one worker are of one target");
    }
    if (!target->numbered && !chosen->ids.empty()) return Status::invalid("there is one device '" + target->name + "'");
    chosen->target = &*target;
    chosen->ids.push_back(*id);
    if (name.size() == text.size()) return {};
    text.remove_prefix(name.size() + 1);
  }
}

}  // namespace torch_remote::worker
