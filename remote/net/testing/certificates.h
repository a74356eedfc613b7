#pragma once

#include <string>

// Certificates for tests.
namespace torch_remote::remote::testing {

struct CertificateOptions {
  std::string name = "localhost";   // subjectAltName: a host name or an IP address
  long from = -3600, until = 3600;  // seconds from now
  std::string authority = "";       // files AUTHORITY.pem and AUTHORITY.key; empty: self-signed
  bool is_authority = false;
};

// Writes FILE.pem and FILE.key.
void make_certificate(const std::string& file, const CertificateOptions& options);

}  // namespace torch_remote::remote::testing
