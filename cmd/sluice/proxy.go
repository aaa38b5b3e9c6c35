package main

import (
	"github.com/spf13/cobra"

	"github.com/sluice-serving/sluice/proxy/command"
)

func newProxyCmd() *cobra.Command { return command.New(command.Options{}) }
