package law

import (
	"go/ast"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// qualified matches a name of a package in the text of a document.
var qualified = regexp.MustCompile("`([a-z][a-z0-9]*)\\.([A-Z][A-Za-z0-9]*)(?:\\.([A-Z][A-Za-z0-9]*))?[`(]")

// Names of our packages that documents mention exist and are exported.
func TestDocumentsNameWhatIsExported(t *testing.T) {
	known := map[string]map[string]bool{} // by package name; packages of one name are put together
	for _, dir := range publicPackages(t) {
		name := path.Base(dir)
		if known[name] == nil {
			known[name] = map[string]bool{}
		}
		for _, f := range parsePackage(t, token.NewFileSet(), dir) {
			exported(f, func(n string) { known[name][n] = true })
		}
	}
	require.True(t, known["scheduler"]["Plan"] && known["scheduler"]["Scheduler.Plan"] && known["scheduler"]["Config.MaxModelLen"])
	docs, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	docs = append(docs, "../../README.md", "../../CONTRIBUTING.md", "../../CHANGELOG.md")
	found := 0
	for _, doc := range docs {
		text, err := os.ReadFile(doc)
		require.NoError(t, err)
		for _, m := range qualified.FindAllStringSubmatch(string(text), -1) {
			names, ours := known[m[1]]
			if !ours {
				continue
			}
			found++
			if !names[m[2]] || m[3] != "" && !names[m[2]+"."+m[3]] {
				t.Errorf("%s: there is no %s", doc, m[0])
			}
		}
	}
	require.Greater(t, found, 10)
}

// exported calls f with each exported name of a file, members and methods behind
// the name of their type.
func exported(file *ast.File, f func(name string)) {
	add := func(owner string, ids ...*ast.Ident) {
		for _, id := range ids {
			if id.IsExported() {
				f(owner + id.Name)
			}
		}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			owner := ""
			if d.Recv != nil {
				owner = receiver(d).Name + "."
			}
			add(owner, d.Name)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					add("", s.Names...)
				case *ast.TypeSpec:
					add("", s.Name)
					switch x := s.Type.(type) {
					case *ast.StructType:
						for _, m := range x.Fields.List {
							add(s.Name.Name+".", m.Names...)
						}
					case *ast.InterfaceType:
						for _, m := range x.Methods.List {
							add(s.Name.Name+".", m.Names...)
						}
					}
				}
			}
		}
	}
}
