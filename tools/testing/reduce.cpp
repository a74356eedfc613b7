#include "tools/reduce/main.h"
#include "tools/testing/miscompile.h"

int main(int argc, char** argv) {
  return torch_remote::tools::reduce::main(torch_remote::tools::testing::miscompiling_pipeline(), argc, argv);
}
