#include <cstdio>
#include <string>

#include "codegen/cpu/compile.h"
#include "codegen/library/codegen_api.h"
#include "codegen/library/gpu.h"
#include "codegen/loop/loop_ir.h"

namespace torch_remote::codegen {
namespace {

int compile_cpu(const char* text, size_t size, const char* target, const tr_variant* variant, tr_cpu_code* code) {
  Kernel kernel;
  cpu::Code made;
  Status status = read_kernel(text, size, &kernel);
  if (status.ok()) {
    cpu::CompileOptions options;
    options.target = target;
    options.variant = {variant->streams != 0, variant->columns};
    status = cpu::compile(kernel, options, &made);
  }
  if (!status.ok()) {
    std::snprintf(code->message, sizeof(code->message), "%s", status.message().c_str());
    return 1;
  }
  code->on_code(code->context, made.bytes.data(), made.bytes.size());
  code->rows = made.rows;
  code->finish = made.finish;
  return 0;
}

}  // namespace

Status read_kernel(const char* text, size_t size, Kernel* kernel) {
  Status status = parse_kernel({text, size}, kernel);
  return status.ok() ? verify(*kernel) : status;
}

}  // namespace torch_remote::codegen

extern "C" __attribute__((visibility("default"))) const tr_codegen_api* torch_remote_codegen_api() {
  using namespace torch_remote::codegen;
  static const std::string version(cpu::compiler_version());
  static const tr_codegen_api api = {sizeof(tr_codegen_api), TR_CODEGEN_ABI, version.c_str(), compile_cpu, compile_gpu};
  return &api;
}
