// make_certificates FOLDER writes certificates and their keys: an authority (ca.pem) and a certificate for 127.0.0.1
// that it signed (worker.pem). Clients must refuse the others: self-signed (stranger.pem), expired (old.pem), for
// another host (named.pem).
#include <string>

#include "remote/net/testing/certificates.h"

int main(int argc, char** argv) {
  using torch_remote::remote::testing::make_certificate;
  if (argc != 2) return 1;
  const std::string folder = std::string(argv[1]) + "/";
  make_certificate(folder + "ca", {.name = "authority", .is_authority = true});
  make_certificate(folder + "worker", {.name = "127.0.0.1", .authority = folder + "ca"});
  make_certificate(folder + "stranger", {.name = "127.0.0.1"});
  make_certificate(folder + "old", {.name = "127.0.0.1", .until = -60, .authority = folder + "ca"});
  make_certificate(folder + "named", {.name = "gpu.example.org", .authority = folder + "ca"});
}
