#include "worker/aten/special.h"

namespace torch_remote::worker::aten {

Special find_special(std::string_view name) {
  if (Special found = find_random(name)) return found;
  if (Special found = find_attention(name)) return found;
  if (Special found = find_embedding(name)) return found;
  return find_rnn(name);
}

}  // namespace torch_remote::worker::aten
