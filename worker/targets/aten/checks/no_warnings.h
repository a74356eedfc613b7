#pragma once

#include <c10/util/Exception.h>

namespace torch_remote::worker::aten {

// Torch's warnings of this thread are dropped while an object of this class exists.
class NoWarnings {
 private:
  struct Handler final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };

  Handler handler_{};
  const c10::WarningUtils::WarningHandlerGuard guard_{&handler_};
};

}  // namespace torch_remote::worker::aten
