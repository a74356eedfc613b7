#pragma once

#include <string>

#include "worker/server.h"

namespace torch_remote::worker {

// Serves clients that connect to `url`, unix://PATH: each in a process of its own, forked from this one, which has
// loaded the plugin and otherwise does nothing. So clients share nothing, none waits for another one, and
// one whose session crashes or runs out of memory harms none. The sessions end with this process. `most`: how many at
// once (a further client is refused at once with the reason); 0: any number. Returns only if it cannot listen: why.
Status listen(const std::string& url, const ServerOptions& options, size_t most);

}  // namespace torch_remote::worker
