package ipc

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/sluice-serving/sluice/ascendrt"
)

const cardVersion = 1

// card is what a side tells its peers.
type card struct {
	Version int                  `json:"v"`
	Host    string               `json:"host"`    // of one start of one kernel
	Process [16]byte             `json:"process"` // random, another one for each Near
	Backend string               `json:"backend"`
	Device  string               `json:"device"` // for people
	Beacon  ascendrt.ShareHandle `json:"beacon"` // of memory that holds Process
}

func (c card) encode() ([]byte, error) { return json.Marshal(c) }

func decodeCard(b []byte) (card, error) {
	var c card
	if err := json.Unmarshal(b, &c); err != nil {
		return card{}, fmt.Errorf("card: %w", err)
	}
	if c.Version != cardVersion {
		return card{}, fmt.Errorf("card of version %d, ours is %d", c.Version, cardVersion)
	}
	return c, nil
}

// bootFile names this start of this kernel, equally in all its containers.
const bootFile = "/proc/sys/kernel/random/boot_id"

func hostName() (string, error) {
	b, err := os.ReadFile(bootFile)
	if err != nil {
		return "", fmt.Errorf("the host is not known: %w", err)
	}
	if name := strings.TrimSpace(string(b)); name != "" {
		return name, nil
	}
	return "", errors.New("the host is not known: " + bootFile + " is empty")
}
