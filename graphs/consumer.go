package graphs

import (
	"fmt"
	"slices"
	"strings"
)

// KVRole is an engine's part in the transfer of KV between instances.
type KVRole uint8

const (
	RoleNone     KVRole = iota // takes no part
	RoleProducer               // computes prompts and hands their KV over
	RoleConsumer               // decodes over KV that it receives
	RoleBoth                   // hands over and receives
)

var roleNames = [...]string{RoleNone: "none", RoleProducer: "kv_producer", RoleConsumer: "kv_consumer", RoleBoth: "kv_both"}

// String returns the name that engine configuration uses.
func (r KVRole) String() string {
	if int(r) < len(roleNames) {
		return roleNames[r]
	}
	return fmt.Sprintf("KVRole(%d)", uint8(r))
}

// ParseKVRole reads a name as String writes it, with or without "kv_"; the
// empty string is RoleNone.
func ParseKVRole(s string) (KVRole, error) {
	if s == "" {
		return RoleNone, nil
	}
	for r, name := range roleNames {
		if s == name || s == strings.TrimPrefix(name, "kv_") {
			return KVRole(r), nil
		}
	}
	return 0, fmt.Errorf("unknown kv role %q (one of %s)", s, strings.Join(roleNames[:], ", "))
}

// KVTransfer names the connector of an engine and its role. Nested holds the
// children of a connector that combines several.
type KVTransfer struct {
	Role      KVRole
	Connector string
	Nested    []KVTransfer
}

// pdConnectors move the KV of whole prompts from a prefiller to a decoder.
var pdConnectors = []string{
	"NixlConnector",
	"MooncakeConnector", "MooncakeConnectorV1", "MooncakeLayerwiseConnector",
	"MoRIIOConnector",
	"pd",
}

// multiConnectors combine other connectors.
var multiConnectors = []string{"MultiConnector", "AscendMultiConnector", "multi"}

// isPDConsumer reports whether the engine is the decode side of a P/D pair: its
// role is kv_consumer and its connector is a known P/D connector, itself or
// nested in one that combines several. kv_both and unknown connectors are not.
func isPDConsumer(t KVTransfer) bool {
	return t.Role == RoleConsumer && hasPDConnector(t)
}

func hasPDConnector(t KVTransfer) bool {
	if slices.Contains(pdConnectors, t.Connector) {
		return true
	}
	return slices.Contains(multiConnectors, t.Connector) && slices.ContainsFunc(t.Nested, hasPDConnector)
}
