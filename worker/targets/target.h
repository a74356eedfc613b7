#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/status.h"
#include "remote/transport/transport.h"
#include "worker/collectives/device_collectives.h"
#include "worker/device/device.h"
#include "worker/runner/plugin.h"
#include "worker/runner/runner.h"

// A target executes programs on one kind of hardware. It opens a device and the ordered runners of that device. The
// worker knows targets by this interface only; worker/process/targets.cpp lists them.
namespace torch_remote::worker {

// A target opens a device for one session with these options.
struct DeviceOptions {
  const tr_runner_api* runner = nullptr;  // The ATen plugin; null: it is not loaded.
  std::string codegen;                    // Path of the library that compiles kernels; empty: no kernels are compiled.
  std::string plugin;          // Path of the plugin, for a target that opens it on demand; empty: it does not.
  int threads = 0;             // Threads of the runner; 0: its default.
  bool inproc = false;         // The process is the client's own.
  bool trusted = false;        // The client started this process, or is in it: its uploads are used in place.
  uint64_t memory_limit = 0;   // Bytes; 0: what the machine or the control group has.
  bool deterministic = false;  // Results must not depend on timing; a client asks for this.
};

// The device of a session, and the runners that execute nodes there, in order.
struct OpenDevice {
  std::unique_ptr<Device> device;
  std::shared_ptr<DeviceCollectives> collectives;  // Null: the device has none.
  Runners runners;
  // What ir::Capabilities says about groups. `targets` are those that kernels are compiled for, such as "x86-64-v4" or
  // "sm_90". If it is empty, no runner executes groups.
  std::vector<std::string> targets;
  uint32_t group_kind_mask = 0;
  uint64_t dtype_mask = 0;
};

// `client_activity` must outlive what is opened.
using DeviceOpener = std::function<Status(remote::Transport& transport, const DeviceOptions& options,
                                          std::function<tr_client_activity()> client_activity, OpenDevice* opened)>;

// Opens a device in this process's memory, with slow and simple runners, to compare others with (worker/shadow).
using ReferenceOpener = std::function<Status(OpenDevice* opened)>;

// The devices of a target on this machine, found without opening them.
struct ListedDevice {
  std::string device;  // The value of --device: "cuda:0".
  std::string id;      // A name that does not depend on the order of devices: a GPU's UUID.
  std::string name;    // "NVIDIA A100-SXM4-80GB"
};
struct DeviceList {
  std::vector<ListedDevice> devices;
  std::string missing;  // Why there are none, if that is known.
};

// Reports what a target finds on this machine, and how to install what is missing.
struct Probed {
  std::string text;  // Lines for people.
  std::string json;  // Members of a JSON object, separated by ", ".
  int status = 0;    // Exit status of --probe: 0: all is there; 1: a part is missing; 2: no device can be used.
};

struct Target {
  std::string name;       // The value of --device, or its part before ":NUMBER".
  std::string about;      // For --help: "an NVIDIA GPU".
  bool numbered = false;  // It has several devices, with numbers: cuda:0, cuda:1. Any of them may be absent.
  bool gpu = false;       // Tensors live in a GPU's memory, and sessions use its driver.
  // Loads into a session's process what the target needs there; null: nothing.
  std::function<Status(DeviceOptions*)> load;
  // Whether a text that is not a number names a device after "NAME:": a GPU's UUID. Null: devices have numbers only.
  std::function<bool(std::string_view id)> is_id = {};
  std::function<DeviceOpener(const std::string& id)> open;  // `id`: a number, "0" unless `numbered`; or as for is_id.
  std::function<Probed(const DeviceOptions&)> probe;        // Null: --probe has nothing to report about the target.
  std::function<DeviceList()> list = {};                    // Null: the target is not in --list-devices.
  ReferenceOpener open_reference = nullptr;                 // Null: other targets are not compared with this one.
};

// The names of its devices: "cpu", or "cuda:0, cuda:1, ...".
std::string device_names(const Target& target);

// Devices of one target.
struct ChosenDevices {
  const Target* target = nullptr;
  std::vector<std::string> ids;  // For Target::open; at least one.
};

// Reads the value of --device: "cpu", "cuda", "cuda:1", "cuda:GPU-8932f937", or several devices of one target with
// commas: "cuda:0,cuda:1". If a name is not a device, the returned error lists the devices of all targets. `targets`
// must outlive *chosen.
Status choose_devices(std::string_view text, std::span<const Target> targets, ChosenDevices* chosen);

}  // namespace torch_remote::worker
