package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Load is Config with the files that the configuration names: certificates,
// the keys of clients and the admin listener's token, which the environment
// variable SLUICE_ADMIN_TOKEN may give instead of a file.
func (f File) Load() (cfg Config, adminToken string, err error) {
	cfg, err = f.Config()
	errs := []error{err}
	keep := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	switch {
	case f.TLS.Cert != "" && f.TLS.Key != "":
		pair, err := tls.LoadX509KeyPair(f.TLS.Cert, f.TLS.Key)
		keep("tls", err)
		cfg.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	case f.TLS.Cert != "" || f.TLS.Key != "":
		keep("tls", errors.New("a certificate needs its key, and a key its certificate"))
	}
	if f.TLS.BackendCA != "" {
		pem, err := os.ReadFile(f.TLS.BackendCA)
		keep("backend authority", err)
		pool := x509.NewCertPool()
		if err == nil && !pool.AppendCertsFromPEM(pem) {
			keep("backend authority", fmt.Errorf("%s holds no certificate", f.TLS.BackendCA))
		}
		cfg.BackendTLS = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	if f.Keys.ClientsFile != "" {
		file, err := os.Open(f.Keys.ClientsFile)
		keep("client keys", err)
		if err == nil {
			cfg.Clients, err = ReadClients(file)
			keep("client keys", errors.Join(err, file.Close()))
			if err == nil && len(cfg.Clients) == 0 {
				keep("client keys", fmt.Errorf("%s holds no key", f.Keys.ClientsFile))
			}
		}
	}
	if f.InstancesFile != "" {
		src, err := os.Open(f.InstancesFile)
		keep("instances file", err)
		if err == nil {
			_, err = readMembers(src)
			keep("instances file "+f.InstancesFile, errors.Join(err, src.Close()))
		}
	}
	if f.Admin.Listen == "" && f.Admin.TokenFile != "" {
		keep("admin", fmt.Errorf("the token file %s is of no use without an admin listener", f.Admin.TokenFile))
	}
	if f.Admin.Listen != "" {
		keep("admin", CheckListen(f.Admin.Listen))
		adminToken = os.Getenv("SLUICE_ADMIN_TOKEN")
		if f.Admin.TokenFile != "" {
			raw, err := os.ReadFile(f.Admin.TokenFile)
			keep("admin token", err)
			adminToken = strings.TrimSpace(string(raw))
		}
		if adminToken == "" {
			keep("admin", errors.New("the admin listener needs a token: give a token file, or SLUICE_ADMIN_TOKEN"))
		}
	}
	return cfg, adminToken, errors.Join(errs...)
}

// CheckListen reports what is wrong with an address to listen on; its port may be 0.
func CheckListen(addr string) error {
	host, port, err := splitHostPort(addr)
	if err != nil {
		return err
	}
	if port == "0" {
		port = "1"
	}
	if host == "" {
		host = "0.0.0.0"
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return CheckAddress(host + ":" + port)
}
