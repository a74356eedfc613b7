#pragma once

#include <memory>

#include "ir/status.h"
#include "worker/collectives/device_collectives.h"
#include "worker/collectives/label.h"
#include "worker/collectives/mesh.h"

// Executes the ops of collectives.h on the devices of a mesh's ranks. The mesh only carries control messages: which
// ranks are present, with which op, and which are done. So a mismatched op, a lost rank and a timeout are reported as
// for ops on the hosts, and end the device's wait.
namespace torch_remote::worker {

// A bit of Mesh::capabilities_of: the rank's device has DeviceCollectives.
inline constexpr uint32_t kHasDeviceCollectives = 1;
bool all_have_device_collectives(const Mesh& mesh);

// Forms the devices' group. All ranks must call it at the same position in the order of ops. If the device of any rank
// cannot join, *group is null, and the hosts execute the ops; *why is the reason as far as this rank knows it. Returns
// errors of the mesh only.
Status meet(Mesh& mesh, DeviceCollectives& collectives, const OpLimits& limits,
            std::shared_ptr<DeviceCollectives::Group>* group, std::string* why);

// Executes an op. `label`: the label that the op has when the hosts execute it.
Status run_on_devices(Mesh& mesh, DeviceCollectives::Group& group, const Label& label,
                      const DeviceCollectives::Call& call, const OpLimits& limits);

}  // namespace torch_remote::worker
