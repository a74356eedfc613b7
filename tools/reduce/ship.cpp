#include "tools/reduce/main.h"

int main(int argc, char** argv) {
  return torch_remote::tools::reduce::main(torch_remote::passes::pipeline(), argc, argv);
}
