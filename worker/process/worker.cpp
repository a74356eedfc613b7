#include "worker/process/main.h"

int main(int argc, char** argv) { return torch_remote::worker::run_worker(argc, argv); }
