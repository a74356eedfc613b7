#include "worker/aten/special.h"

namespace torch_remote::worker::aten {

Special find_special(std::string_view name) {
  if (Special found = find_random(name)) return found;
  return find_attention(name);
}

}  // namespace torch_remote::worker::aten
