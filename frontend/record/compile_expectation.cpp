#include "frontend/record/compile_expectation.h"

#include <c10/util/StringUtil.h>

#include <mutex>
#include <utility>

#include "frontend/source/source.h"

namespace torch_remote::frontend {

void CompileExpectation::expect_no_compile(bool expect) {
  const std::lock_guard<FastMutex> lock(mutex_);
  on_ = expect;
  if (expect) miss_.reset();
}

std::string CompileExpectation::take_miss() {
  std::optional<UnexpectedCompile> miss;
  {
    const std::lock_guard<FastMutex> lock(mutex_);
    miss = std::exchange(miss_, std::nullopt);
  }
  if (!miss) return {};
  const std::string line = describe_source(miss->source);
  const std::string where = line.empty() ? std::string() : " at " + line;
  if (miss->compiled_graph) {
    return c10::str("a program was built: torch.compile made another graph of ", miss->records, " ops, which ends",
                    where);
  }
  if (miss->record > miss->records) {
    return c10::str("a program was built: no program was known before; its last op is", where);
  }
  if (miss->op.empty()) {
    return c10::str("a program was built: its ", miss->records,
                    " ops are those of a known program, but other tensors outlive it; it ends", where);
  }
  return c10::str("a program was built: op ", miss->record, " of ", miss->records, ", '", miss->op, "'", where,
                  ", is the first that differs from the known programs");
}

}  // namespace torch_remote::frontend
