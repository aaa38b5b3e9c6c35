package tcp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// MutualTLS reads PEM files and returns what Config.ServerTLS and
// Config.ClientTLS need so that both sides prove themselves: each shows the
// certificate and accepts only those that the authority has signed, and the
// dialing side also checks that the certificate names the host that it dials.
func MutualTLS(certFile, keyFile, authorityFile string) (server, client *tls.Config, err error) {
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("tls certificate %s with key %s: %w", certFile, keyFile, err)
	}
	pem, err := os.ReadFile(authorityFile)
	if err != nil {
		return nil, nil, fmt.Errorf("tls authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("tls authority %s: %w", authorityFile, errors.New("no certificate in the file"))
	}
	server = &tls.Config{
		Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS13,
	}
	client = &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, MinVersion: tls.VersionTLS13}
	return server, client, nil
}
