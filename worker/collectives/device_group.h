#pragma once

#include <memory>

#include "ir/status.h"
#include "worker/collectives/device_collectives.h"
#include "worker/collectives/label.h"
#include "worker/collectives/mesh.h"

// The same ops over a mesh's group, by the devices: what goes over the connections is who is there, with which op, and
// who is done. So an op that differs from rank to rank, a rank that is gone, and time are told as they are where the
// hosts do it, and end what the device waits for.
namespace torch_remote::worker {

// Whether all ranks' devices may do it, by what they said when they were connected.
inline constexpr uint32_t kOffersDeviceCollectives = 1;
bool all_offer(const Mesh& mesh);

// Called by all ranks at the same place in the order of ops. Null: one of them cannot, and the hosts do it; *why says
// what this one saw. An error is the mesh's.
Status meet(Mesh& mesh, DeviceCollectives& collectives, const OpLimits& limits,
            std::shared_ptr<DeviceCollectives::Group>* group, std::string* why);

// `label`: as of the hosts' op.
Status run_on_devices(Mesh& mesh, DeviceCollectives::Group& group, const Label& label,
                      const DeviceCollectives::Call& call, const OpLimits& limits);

}  // namespace torch_remote::worker
