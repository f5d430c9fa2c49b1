package web

import (
	"bytes"
	"net/http"
)

// Title is the name at the top of every page, and of feeds.
const Title = "Weir"

// Frame holds the parts that every page has.
type Frame struct {
	Title  string // the name at the top
	Home   string
	ToHome string // the text of the link to Home
	CSS    string
	JS     string // empty: the page has no script
	Icon   string
	Texts  string // for the script
}

func (s *Server) NewFrame() Frame {
	return Frame{Title: Title, Home: s.home, ToHome: s.front.ToIt, CSS: s.assets.url("page.css"), Icon: s.assets.url("icon.svg")}
}

// Scripted adds a script of the static files to a page.
func (f Frame) Scripted(s *Server, name string) Frame {
	f.JS, f.Texts = s.assets.url(name), s.script
	return f
}

// Render writes a template. It executes the template before it sends anything, so that
// an error cannot leave an incomplete page.
func (s *Server) Render(w http.ResponseWriter, code int, name string, view any) {
	var b bytes.Buffer
	if err := s.templates.ExecuteTemplate(&b, name, view); err != nil {
		s.RenderFailed(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	w.Write(b.Bytes()) // the client has gone
}

// RenderFailed reports a bug in Weir.
func (s *Server) RenderFailed(w http.ResponseWriter, err error) {
	s.Log.Error("page_render_failed", "error", err)
	http.Error(w, say("error_render"), http.StatusInternalServerError)
}
