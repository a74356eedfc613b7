#include "tools/replay/main.h"

int main(int argc, char** argv) {
  return torch_remote::tools::replay::main(torch_remote::passes::pipeline(), argc, argv);
}
