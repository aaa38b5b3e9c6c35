package socket_test

import (
	"fmt"
	"io"
	"net"

	"github.com/sluice-serving/sluice/proxy/socket"
)

// A server takes short connections from its listener; the rest is as ever.
func Example() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	l = socket.Listen(l)
	defer l.Close()
	go func() {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "hello")
	}()
	c, err := l.Accept()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	text, err := io.ReadAll(c)
	fmt.Println(string(text), err)
	// Output: hello <nil>
}
