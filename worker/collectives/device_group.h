#pragma once

#include <memory>

#include "ir/status.h"
#include "worker/collectives/device_collectives.h"
#include "worker/collectives/label.h"
#include "worker/collectives/mesh.h"

// The same ops over a mesh's group, executed by the devices. The connections only carry control messages: which ranks
// are present, with which op, and which are done. So a mismatched op, a lost rank and a timeout are reported as for ops
// on the hosts, and end the device's wait.
namespace torch_remote::worker {

// Whether the devices of all ranks may support these ops, as reported when the ranks connected.
inline constexpr uint32_t kHasDeviceCollectives = 1;
bool all_have_device_collectives(const Mesh& mesh);

// Called by all ranks at the same position in the order of ops. A null group: the device of one rank cannot join, so
// the hosts execute the ops; *why is the reason that this rank knows. An error is an error of the mesh.
Status meet(Mesh& mesh, DeviceCollectives& collectives, const OpLimits& limits,
            std::shared_ptr<DeviceCollectives::Group>* group, std::string* why);

// `label` is that of the op on the hosts.
Status run_on_devices(Mesh& mesh, DeviceCollectives::Group& group, const Label& label,
                      const DeviceCollectives::Call& call, const OpLimits& limits);

}  // namespace torch_remote::worker
