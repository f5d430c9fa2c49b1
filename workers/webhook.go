package workers

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-social/weir/jobs"
)

// Webhook is where alerts are sent. Its address is a secret: whoever knows it can
// write there. No error of this package contains it.
type Webhook struct {
	url    string
	format string
	client *http.Client
}

// The formats of a webhook's messages.
const (
	FormatSlack   = "slack"
	FormatDiscord = "discord"
	FormatJSON    = "json"
)

// sendWithin bounds a message: a webhook that hangs holds one worker of the
// alerts' queue for so long, and nobody else.
const sendWithin = 10 * time.Second

// NewWebhook checks an address. Without a format, the host decides.
func NewWebhook(address, format string) (*Webhook, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, errors.New("the webhook's address is no URL: expected https://host/path")
	}
	switch host := strings.ToLower(u.Hostname()); {
	case format != "":
	case host == "hooks.slack.com":
		format = FormatSlack
	case host == "discord.com" || host == "discordapp.com":
		format = FormatDiscord
	default:
		format = FormatJSON
	}
	if format != FormatSlack && format != FormatDiscord && format != FormatJSON {
		return nil, fmt.Errorf("the webhook's format is %q: expected %s, %s or %s", format, FormatSlack, FormatDiscord, FormatJSON)
	}
	client := &http.Client{Timeout: sendWithin, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &Webhook{url: address, format: format, client: client}, nil
}

// body is a message in the webhook's format. Slack's and Discord's markup cannot
// be written by whoever writes the error texts of a stream.
func (h *Webhook) body(a jobs.SendAlert) ([]byte, error) {
	switch h.format {
	case FormatSlack:
		return json.Marshal(map[string]any{"text": strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(sentences(a))})
	case FormatDiscord:
		const most = 2000 // characters; more is refused
		content := []rune(sentences(a))
		return json.Marshal(map[string]any{"content": string(content[:min(len(content), most)]), "allowed_mentions": map[string]any{"parse": []string{}}})
	}
	return json.Marshal(a)
}

// sentences are a message for a person.
func sentences(a jobs.SendAlert) string {
	at := func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
	if a.Resolved {
		return fmt.Sprintf("Resolved: %s (%s). It was: %s. From %s to %s.", a.Name, a.Severity, a.Message, at(a.Since), at(a.At))
	}
	return fmt.Sprintf("%s: %s. Now: %s. Since %s. Hint at: %s.", strings.ToUpper(a.Severity), a.Name, a.Message, at(a.Since), a.Hint)
}
