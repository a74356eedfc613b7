#include "worker/targets/target.h"

#include <algorithm>
#include <charconv>

namespace torch_remote::worker {
namespace {

// "cpu, cuda:0, cuda:1, ..., reference"
std::string names_of(std::span<const Target> targets) {
  std::string names;
  for (const Target& target : targets) names += (names.empty() ? "" : ", ") + device_names(target);
  return names;
}

// The number of a device of the target, or -1.
int number_of(std::string_view name, const Target& target) {
  if (name == target.name) return 0;
  name.remove_prefix(std::min(name.size(), target.name.size() + 1));
  int number = -1;
  const auto read = std::from_chars(name.data(), name.data() + name.size(), number);
  return target.numbered && read.ec == std::errc() && read.ptr == name.data() + name.size() ? number : -1;
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
    const int number = target != targets.end() ? number_of(name, *target) : -1;
    if (number < 0) {
      return Status::invalid("'" + std::string(name) + "' is not a device; there are " + names_of(targets));
    }
    if (chosen->target != nullptr && chosen->target != &*target) {
      return Status::invalid("'" + std::string(name) + "' is not a device of '" + chosen->target->name +
                             "': the devices of one worker are of one target");
    }
    if (!target->numbered && !chosen->numbers.empty())
      return Status::invalid("there is one device '" + target->name + "'");
    chosen->target = &*target;
    chosen->numbers.push_back(number);
    if (name.size() == text.size()) return {};
    text.remove_prefix(name.size() + 1);
  }
}

}  // namespace torch_remote::worker
