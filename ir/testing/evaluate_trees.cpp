// Evaluates expressions of the op table, for a test that compares them with torch (tests/op_table_facts/tree_test.py).
//
// stdin: requests. Each is a line "NAME DTYPE ARGUMENTS COUNT", followed by ARGUMENTS * COUNT elements of that dtype,
// one argument after the other. stdout: COUNT elements for each request.
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "ir/ops/op_table.h"

namespace torch_remote::ir {
namespace {

template <typename T>
bool answer(const OpDesc& desc, size_t arguments, size_t count) {
  const auto elements = std::make_unique<T[]>(arguments * count);
  if (!std::cin.read(reinterpret_cast<char*>(elements.get()),
                     static_cast<std::streamsize>(arguments * count * sizeof(T)))) {
    return false;
  }
  const auto row = std::make_unique<T[]>(arguments);
  for (size_t i = 0; i < count; ++i) {
    for (size_t a = 0; a < arguments; ++a) row[a] = elements[a * count + i];
    const T result = evaluate<T>(desc.tree, std::span<const T>(row.get(), arguments));
    std::cout.write(reinterpret_cast<const char*>(&result), sizeof(T));
  }
  return true;
}

bool serve(const std::string& line) {
  std::istringstream words(line);
  std::string name, dtype;
  size_t arguments = 0, count = 0;
  words >> name >> dtype >> arguments >> count;
  const Opcode opcode = find_op(name);
  if (!words || opcode == kInvalidOpcode || op_desc(opcode).tree.empty() || arguments != op_desc(opcode).args.size()) {
    std::cerr << "no such expression: " << line << '\n';
    return false;
  }
  const OpDesc& desc = op_desc(opcode);
  if (dtype == "float64") return answer<double>(desc, arguments, count);
  if (dtype == "float32") return answer<float>(desc, arguments, count);
  if (dtype == "int64") return answer<int64_t>(desc, arguments, count);
  if (dtype == "int32") return answer<int32_t>(desc, arguments, count);
  if (dtype == "uint8") return answer<uint8_t>(desc, arguments, count);
  if (dtype == "bool") return answer<bool>(desc, arguments, count);
  std::cerr << "no such dtype: " << line << '\n';
  return false;
}

}  // namespace
}  // namespace torch_remote::ir

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    if (!torch_remote::ir::serve(line)) return 1;
  }
  return 0;
}
