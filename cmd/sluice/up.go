package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/up"
)

func newUpCmd() *cobra.Command {
	o := up.Options{
		Model: "builtin",
		Cluster: up.Cluster{
			Prefiller: up.Engine{MaxLen: 4096},
			Decoder:   up.Engine{MaxLen: 4096},
		},
	}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a Prefiller, a Decoder and the proxy on this machine and keep them up",
		Long: "Starts one Prefiller, one Decoder and the proxy as processes of this executable on the\n" +
			"loopback interface, waits until they are ready, has one turn of a conversation with them and\n" +
			"prints two curl commands that continue it. Ctrl-C ends every process.",
		Example: "  sluice up --decoder-dp-size 2 --dir run/up",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Cluster.TraceDir = o.Dir
			if _, _, _, err := findDevice(cmd.Context(), "device", o.Cluster.Device); err != nil {
				return err
			}
			if err := errors.Join(pool("prefiller-kv-blocks", o.Cluster.Device, &o.Cluster.Prefiller), pool("decoder-kv-blocks", o.Cluster.Device, &o.Cluster.Decoder)); err != nil {
				return err
			}
			return up.Run(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Cluster.Port, "port", 9000, "port of the proxy")
	f.IntVar(&o.Cluster.Decoder.Ranks, "decoder-dp-size", 2, "DP ranks of the Decoder")
	f.IntVar(&o.Cluster.Decoder.Blocks, "decoder-kv-blocks", 0, "KV blocks of each Decoder rank (0: the engine's default)")
	f.IntVar(&o.Cluster.Prefiller.Blocks, "prefiller-kv-blocks", 0, "KV blocks of the Prefiller (0: the engine's default)")
	f.StringVar(&o.Cluster.Device, "device", "host", "device of both engines: host, cuda or ascend, with :n for another than the first")
	f.StringVar(&o.Dir, "dir", "run/up", "folder for logs, trace files and request.json")
	f.DurationVar(&o.Config.ReadyTimeout, "ready-timeout", up.DefaultReadyTimeout, "how long a process may take to become ready")
	f.DurationVar(&o.Config.Grace, "grace", up.DefaultGrace, "how long a process may take to end before it is killed")
	return cmd
}

// pool reports a KV pool without room for one sequence by the flag that sets it.
func pool(flag, device string, e *up.Engine) error {
	var wrong *engine.SettingError
	err := engine.Config{Device: device, KVBlocks: e.Blocks, MaxModelLen: e.MaxLen}.Validate()
	if errors.As(err, &wrong) && wrong.Name == "num-kv-blocks" {
		return &engine.SettingError{Name: "--" + flag, Value: wrong.Value, Need: wrong.Need}
	}
	return nil
}
